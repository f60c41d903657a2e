/* Browsers start no worker from the disk, where the search would run in one. A hidden frame does the same: it loads the
   script, and messages go back and forth. On a server the browser's own workers are used. */
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    const inside = this.frame.contentWindow;
    const script = new URL(url, document.baseURI).href;
    inside.document.open();
    inside.document.write(
      "<!DOCTYPE html><body><script>" +
        "postMessage = message => parent.postMessage(message, '*');" +
        "importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise(resolve => {" +
        "const script = document.createElement('script'); script.src = url; script.onload = resolve;" +
        "document.body.appendChild(script); })), Promise.resolve());" +
        "<\/script><script src='" + script + "'><\/script></body>"
    );
    inside.document.close();
    this.loaded = new Promise(resolve => inside.addEventListener("load", resolve));
    addEventListener("message", event => {
      if (event.source !== inside) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
  }

  postMessage(data) {
    this.loaded.then(() => {
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
