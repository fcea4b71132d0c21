"""SGLang: HiCache's file storage, with the keys of its cache controller."""
