/* Search in a site that was opened from a file: browsers refuse workers there, so the search runs in a hidden frame.
 * The offline plugin would load https://unpkg.com/iframe-worker for this. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.loaded = new Promise((resolve) => {
        const page = frame.contentDocument;
        page.open();
        page.write("<!doctype html>");
        page.close();
        this.inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          this.onmessage?.(event);
        };
        const script = page.createElement("script");
        script.src = url;
        script.onload = resolve;
        page.documentElement.append(script);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
