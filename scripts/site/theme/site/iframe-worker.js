// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker from a page that was opened as a file. There, and only there, the search runs in a hidden frame
// instead, which has what the search's script uses of a worker: postMessage, importScripts, and messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.document.open()
      inside.document.write("<!doctype html><html><body></body></html>")
      inside.document.close()
      const load = source => new Promise((loaded, failed) => {
        const script = inside.document.createElement("script")
        script.src = source
        script.onload = loaded
        script.onerror = failed
        inside.document.body.append(script)
      })
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.ready = load(url)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
