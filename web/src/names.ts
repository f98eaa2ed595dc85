import { h } from './dom'
import { type Label, most, placed } from './labels'
import { stateNames } from './model'

/** Axis is an edge of the torus with the coordinates along it, in pixels. */
export interface Axis { name: string; from: [number, number]; to: [number, number]; ticks: { at: [number, number]; text: string }[] }

/** Names draws axes and names over the torus. The tables have the same names for people who cannot see them. */
export class Names {
  readonly canvas = h('canvas', { id: 'names', 'aria-hidden': 'true' })
  private readonly g = this.canvas.getContext('2d')
  private readonly widths = new Map<string, number>()
  private colours: Record<string, string> = {}

  readColours(): void {
    const style = getComputedStyle(document.documentElement)
    for (const c of ['ground', 'ink', 'soft', 'normal-ink', 'sick-ink', 'bad-ink', 'unknown-ink', 'accent']) {
      this.colours[c] = style.getPropertyValue('--' + c).trim()
    }
  }

  /** draw draws into a window of this size in CSS pixels; ratio is device pixels per CSS pixel. It returns how many required names do not fit. */
  draw(width: number, height: number, ratio: number, axes: Axis[], labels: Label[]): number {
    const g = this.g
    if (!g || !width || !height) return 0
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio)
      this.canvas.height = Math.round(height * ratio)
    }
    g.setTransform(ratio, 0, 0, ratio, 0, 0)
    g.clearRect(0, 0, width, height)
    g.textBaseline = 'middle'
    g.lineJoin = 'round'
    this.canvas.dataset.axes = axes.filter((a) => this.axis(g, a)).map((a) => [a.name, ...a.ticks.map((t) => t.text)].join(' ')).join('|')
    const out = placed(labels, width, height, (text) => this.measure(g, text))
    for (const l of out) {
      const ink = this.colours[['ink', 'unknown-ink', 'normal-ink', 'sick-ink', 'bad-ink'][l.state]]
      if (l.line) {
        g.strokeStyle = this.colours.soft
        g.lineWidth = 1
        g.beginPath()
        g.moveTo(l.x, l.y)
        g.lineTo(l.left > l.x ? l.left - 2 : Math.min(l.x, l.left + l.width + 2), l.middle)
        g.stroke()
      }
      this.text(g, l.text, l.left, l.middle, ink, stateNames[l.state] === 'NORMAL' ? 400 : 700)
    }
    this.canvas.dataset.names = out.map((l) => l.text).join('|')
    return labels.filter((l) => l.must).length - out.filter((l) => l.must).length
  }

  /** axis draws an axis, and reports whether it is long enough to be visible. */
  private axis(g: CanvasRenderingContext2D, a: Axis): boolean {
    const [dx, dy] = [a.to[0] - a.from[0], a.to[1] - a.from[1]], long = Math.hypot(dx, dy)
    if (long < 24) return false // it points at the reader
    const [ux, uy] = [dx / long, dy / long]
    g.strokeStyle = g.fillStyle = this.colours.soft
    g.lineWidth = 1.5
    g.beginPath()
    g.moveTo(...a.from)
    g.lineTo(...a.to)
    g.stroke()
    g.beginPath()
    g.moveTo(a.to[0] + 9 * ux, a.to[1] + 9 * uy)
    g.lineTo(a.to[0] - 5 * uy, a.to[1] + 5 * ux)
    g.lineTo(a.to[0] + 5 * uy, a.to[1] - 5 * ux)
    g.fill()
    g.textAlign = 'center'
    for (const t of a.ticks) {
      g.beginPath()
      g.arc(t.at[0], t.at[1], 2, 0, 7)
      g.fill()
      this.text(g, t.text, t.at[0] + (Math.abs(uy) > 0.7 ? -13 : 0), t.at[1] + (Math.abs(uy) > 0.7 ? 0 : 14), this.colours.soft, 400)
    }
    this.text(g, a.name, a.to[0] + 24 * ux, a.to[1] + 20 * uy, this.colours.accent, 700)
    g.textAlign = 'left'
    return true
  }

  private text(g: CanvasRenderingContext2D, text: string, x: number, y: number, ink: string, weight: number): void {
    g.font = `${weight} 16px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif`
    g.strokeStyle = this.colours.ground // a name before other signs stays readable
    g.lineWidth = 4
    g.strokeText(text, x, y)
    g.fillStyle = ink
    g.fillText(text, x, y)
  }

  private measure(g: CanvasRenderingContext2D, text: string): number {
    let w = this.widths.get(text)
    if (w === undefined) {
      if (this.widths.size > 10 * most) this.widths.clear()
      g.font = '700 16px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'
      this.widths.set(text, w = Math.ceil(g.measureText(text).width))
    }
    return w
  }
}
