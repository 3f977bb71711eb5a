"""A page with pictures and a WebSocket, served over HTTP/1 by the package `websockets`. Prints its port and serves until
it is killed."""
import socket

from websockets.sync.server import serve

IMAGE = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"><!--' + "+" * 5000 + "--></svg>"
PAGE = """<!doctype html><title>loading</title><link rel="icon" href="data:,"><body><script>
let loaded = 0;
for (let n = 0; n < 60; n++) {
  const image = new Image();
  image.onload = () => { loaded += 1; };
  image.src = "/image/" + n;
  document.body.append(image);
}
window.onload = () => {
  const socket = new WebSocket(`wss://${location.host}/socket`), got = [];
  socket.binaryType = "arraybuffer";
  socket.onmessage = event => {
    got.push(typeof event.data === "string" ? event.data : event.data.byteLength);
    if (got.length === 1) {
      socket.send("text");
      socket.send(new Uint8Array(300000));
    } else if (got.length === 3) {
      socket.close(1000);
    }
  };
  socket.onclose = event => {
    const hops = performance.getEntriesByType("resource").map(entry => entry.nextHopProtocol);
    const strange = hops.filter(hop => hop !== "h2" && hop !== "").length;
    document.title = [loaded, strange, ...got, event.code].join(" ");
  };
};
</script>"""


def answer(connection, request):
    if request.path == "/socket":
        return None
    response = connection.respond(200, PAGE if request.path == "/" else IMAGE)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "text/html" if request.path == "/" else "image/svg+xml"
    return response


def echo(connection):
    # The version of HTTP in which the browser has asked, from the proxy.
    connection.send(connection.request.headers.get("x-major", "none"))
    for message in connection:
        connection.send(message)


listener = socket.create_server(("127.0.0.1", 0), backlog=100)
with serve(echo, sock=listener, process_request=answer, compression=None) as server:
    print(f"port: {listener.getsockname()[1]}", flush=True)
    server.serve_forever()
