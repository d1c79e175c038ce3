-- digest: of what the record under this identity says, as long as the identity is known; NULL where nothing is compared.
ALTER TABLE semel_record ADD COLUMN digest bytea;
