// The page is made of elements and text alone: whatever nodes say is text, and nothing of it is ever taken for markup.

type Child = Node | string | null | undefined | false
type Props = Record<string, string | number | boolean | ((e: never) => void) | undefined>

/** h makes an element. Properties that begin with "on" listen; true and false set and leave out an attribute. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const e = document.createElement(tag)
  for (const [name, v] of Object.entries(props)) {
    if (v === undefined || v === false) continue
    if (typeof v === 'function') e.addEventListener(name.slice(2), v as EventListener)
    else e.setAttribute(name, v === true ? '' : String(v))
  }
  put(e, ...children)
  return e
}

/** put replaces the contents of an element. */
export function put(e: Element, ...children: Child[]): void {
  e.replaceChildren(...children.filter((c): c is Node | string => c !== null && c !== undefined && c !== false))
}

const svg = 'http://www.w3.org/2000/svg'

/** mark is the sign of a state: its shape says the same as its colour. */
export function mark(state: string): SVGSVGElement {
  const e = document.createElementNS(svg, 'svg')
  e.setAttribute('viewBox', '0 0 16 16')
  e.setAttribute('aria-hidden', 'true')
  e.setAttribute('class', 'mark ' + state)
  const shape = document.createElementNS(svg, state === 'NORMAL' || state === 'UNKNOWN' ? 'circle' : 'path')
  if (state === 'NORMAL') set(shape, { cx: 8, cy: 8, r: 5.5 })
  else if (state === 'UNKNOWN') set(shape, { cx: 8, cy: 8, r: 5 })
  else set(shape, { d: state === 'SICK' ? 'M8 3 14 13.3H2Z' : state === 'ABSENT' ? 'M3 8h10' : 'M2 2h12v12H2Z' })
  e.append(shape)
  return e
}

/** frame is the sign of a group fault: its members are in a box. */
export function frame(): HTMLElement {
  return h('span', { class: 'frame', 'aria-hidden': 'true' })
}

function set(e: Element, attrs: Record<string, string | number>): void {
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, String(v))
}

/** badge is a state in words with its sign. */
export function badge(state: string): HTMLElement {
  return h('span', { class: 'badge ' + state }, mark(state), state)
}

export function time(ms: number): HTMLElement {
  const d = new Date(ms)
  return h('time', { datetime: d.toISOString(), title: d.toLocaleString() }, clock(d))
}

/** clock is the time of day, with the date where it is another day. */
export function clock(d: Date): string {
  const t = d.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit' })
  return d.toDateString() === new Date().toDateString() ? t : `${d.toLocaleDateString([], { month: 'short', day: 'numeric' })} ${t}`
}

/** span writes a duration for people. */
export function span(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`
  const s = ms / 1000
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`
  return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`
}

/** seconds reads a duration of protobuf's JSON, "1.5s". */
export function seconds(d: unknown): number {
  return typeof d === 'string' ? parseFloat(d) : 0
}
