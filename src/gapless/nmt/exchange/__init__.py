"""Trained models for other programs: `ctranslate2_model.py` writes CTranslate2's, `hugging_face.py` those of transformers.

Neither needs a run folder: `run` reads it.
"""
