// The search of the site runs in a worker, which browsers refuse to a page that lies on a disk: there an empty frame
// runs its script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const base = new URL(url, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<body>";
      this.begun = new Promise((resolve) => {
        frame.onload = async () => {
          const inside = frame.contentWindow;
          const load = (address) =>
            new Promise((loaded) => {
              const script = inside.document.createElement("script");
              script.src = new URL(address, base);
              script.onload = loaded;
              inside.document.body.append(script);
            });
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = async (...addresses) => {
            for (const address of addresses) await load(address);
          };
          await load(base);
          resolve(inside);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.begun).dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
