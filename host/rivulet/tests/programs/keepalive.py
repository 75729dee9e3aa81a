"""Several requests on one connection: `keepalive.py CLIENT HOST NAME...`, CLIENT being `http.client` or `httpx`. Writes
the SHA-256 of each answer's content, and fails where a request does."""

import hashlib
import http.client
import sys


def contents(client, host, names):
    if client == "httpx":
        import httpx

        with httpx.Client(timeout=60, limits=httpx.Limits(max_connections=1)) as session:
            for name in names:
                yield session.get(f"http://{host}/{name}").raise_for_status().content
        return
    connection = http.client.HTTPConnection(host, timeout=60)
    # A connection that the server has closed is not opened again: that would be an error here.
    connection.auto_open = 0
    connection.connect()
    for name in names:
        connection.request("GET", f"/{name}")
        response = connection.getresponse()
        content = response.read()
        assert response.status == 200, response.status
        yield content


client, host, *names = sys.argv[1:]
for content in contents(client, host, names):
    print(hashlib.sha256(content).hexdigest())
