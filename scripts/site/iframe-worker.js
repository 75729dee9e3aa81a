// Browsers start no Worker for a page from file://. There, this class runs the search's script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const load = (source) => new Promise((done, failed) => {
        const script = inner.document.createElement("script");
        script.onload = done;
        script.onerror = failed;
        script.src = source;
        inner.document.body.append(script);
      });
      // What the script takes from a Worker's global object.
      inner.postMessage = (data) => window.postMessage({ worker: url, data }, "*");
      inner.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      window.addEventListener("message", ({ data }) => {
        if (data?.worker === url) this.dispatchEvent(new MessageEvent("message", { data: data.data }));
      });
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
