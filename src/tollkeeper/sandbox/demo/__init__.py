"""`tollkeeper demo`: whole purchases, told step by step."""
