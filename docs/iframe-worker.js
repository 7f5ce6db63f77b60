// Browsers start no worker for a page that is opened as a file. There, search runs its worker in a hidden frame, which
// gets what a worker has: messages to and from the page, and importScripts.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((resolve, reject) => {
      const script = frame.document.createElement("script");
      Object.assign(script, { src: url, onload: resolve, onerror: reject });
      frame.document.head.append(script);
    });
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const element = document.body.appendChild(document.createElement("iframe"));
      element.hidden = true;
      this.frame = element.contentWindow;
      this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.importScripts = async (...urls) => {
        for (const each of urls) await load(this.frame, each);
      };
      this.ready = load(this.frame, new URL(url, location));
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.frameElement.remove();
    }
  };
}
