"""What accelerate makes of the same model and budgets, in the environment that holds it: scripts as text.

`MAPS` asks for device maps of a model without weights; `GENERATE` loads a checkpoint by one and generates.
"""

from __future__ import annotations

MAPS = """
import json, sys, time, warnings
import torch, transformers
from accelerate import infer_auto_device_map
from accelerate.utils import get_balanced_memory
warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
asked = json.loads(sys.argv[1])
config = transformers.AutoConfig.from_pretrained(asked["config"])
dtype = getattr(torch, asked["dtype"])
with torch.device("meta"):
    model = getattr(transformers, asked["class"])._from_config(config, dtype=dtype)
model.tie_weights()
whole = sorted(model._no_split_modules or [])
def budgets(given):
    return {int(name) if name.isdigit() else name: size for name, size in given.items()}
maps, seconds = [], 0.0
for case in asked["cases"]:
    max_memory = budgets(case["max_memory"])
    began = time.perf_counter()
    if case["is_balanced"]:
        max_memory = get_balanced_memory(model, max_memory, no_split_module_classes=whole, dtype=dtype)
    found = infer_auto_device_map(model, max_memory, no_split_module_classes=whole, dtype=dtype)
    seconds = max(seconds, time.perf_counter() - began)
    maps.append(dict(found))
print(json.dumps({"maps": maps, "no_split": whole, "most_seconds": seconds}))
"""
"""One argument, JSON: `config` (a folder), `class`, `dtype`, `cases` of `max_memory` and `is_balanced`.
Prints the maps."""

GENERATE = """
import json, sys, tempfile, time
import torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList
transformers.logging.set_verbosity_error()
folder, device_map, prompt, count = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ends = []
class Clock(StoppingCriteria):
    def __call__(self, ids, scores, **rest):
        ends.append(time.perf_counter_ns())
        return torch.zeros(ids.shape[0], dtype=torch.bool)
with tempfile.TemporaryDirectory() as offload, torch.inference_mode():
    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map=device_map, offload_folder=offload, dtype="auto").eval()
    inputs = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=count, do_sample=False,
                         stopping_criteria=StoppingCriteriaList([Clock()]))
    new = ids[0, inputs["input_ids"].shape[1]:].tolist()
print(json.dumps({"decode_ns": (ends[-1] - ends[0]) // (len(ends) - 1), "token_ids": new}))
"""
"""Arguments: folder, map, prompt, most tokens. Prints the time of a token after the first, and the tokens."""
