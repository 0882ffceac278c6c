"""The GPUs that this build finds, and a model on the best one."""

from _common import model_path

import trike

for device in trike.devices():
    print(device["name"], device["adapter"], "(software)" if device["software"] else "")
print("processor:", trike.cpu_info())
# A GPU if there is one, else the processor.
model = trike.Model(model_path(), device="auto")
done = model.generate("Once upon a time", max_tokens=40)
print(f"{model.info['backend']}: {done['tokens_per_second']:.0f} tokens/s")
