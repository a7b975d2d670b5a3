// A page in a folder (file:) may start no worker, so the worker of the search runs in a frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const isThere = new Promise((there) => this.frame.addEventListener("load", there, { once: true }));
      document.body.append(this.frame);
      this.isLoaded = isThere.then(() => this.run(url));
    }

    run(url) {
      const inside = this.frame.contentWindow;
      // The functions of a worker, which the script calls.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => urls.reduce((all, one) => all.then(() => this.load(one)), Promise.resolve());
      return this.load(url);
    }

    load(url) {
      return new Promise((loaded, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        Object.assign(script, { src: url, onload: loaded, onerror: failed });
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.isLoaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
