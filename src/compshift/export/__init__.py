"""Export of fitted and fine-tuned models to ONNX."""
