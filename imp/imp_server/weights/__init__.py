"""Model files: headers, tensors, dequantising; the catalogue of what is here, and pulling what isn't."""
