// A page that is opened as a file may start no worker, and the search is one. Here a hidden frame does its work: it loads the
// same script, hears what is posted to it, and what it posts comes back as "message". Served pages use the browser's own.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><body></body>";
      frame.onload = () => this.begin(frame.contentWindow, url);
      document.body.appendChild(frame);
    }

    begin(inner, url) {
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) =>
        urls.reduce((done, one) => done.then(() => this.load(inner, one)), Promise.resolve());
      this.load(inner, url).then(() => {
        this.inner = inner;
        for (const data of this.waiting) this.postMessage(data);
      });
    }

    load(inner, url) {
      return new Promise((done, failed) => {
        const script = inner.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = done;
        script.onerror = failed;
        inner.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
}
