import {
  BufferAttribute, BufferGeometry, Color, LineBasicMaterial, LineSegments, PerspectiveCamera, Points, Scene as Three, ShaderMaterial, Vector2, Vector3, WebGLRenderer,
} from 'three'
import { OrbitControls } from 'three/examples/jsm/controls/OrbitControls.js'
import { LineMaterial } from 'three/examples/jsm/lines/LineMaterial.js'
import { LineSegments2 } from 'three/examples/jsm/lines/LineSegments2.js'
import { LineSegmentsGeometry } from 'three/examples/jsm/lines/LineSegmentsGeometry.js'
import type { Label } from './labels'
import { badCables, type Box, boxes, cableWords, directions, FAILED, fewNodes, Model, namedNodes, NORMAL, SICK, type State, UNKNOWN } from './model'
import { type Axis, Names } from './names'
import { Pace } from './pace'

/** Slice is a plane of the torus, or all of it (axis -1). */
export interface Slice { axis: number; at: number }

// Above so many nodes the cables that are NORMAL are left out, unless a slice is shown: they would hide the rest.
const manyNodes = 1500

// How far a group's box stands off its members, in the unit of one cable's length.
const margin = 0.38

// How far the axes stand off the outermost nodes: beyond the cables that lead to the other side.
const axesOff = 0.8

const stillAfter = 200 // milliseconds, and what moved is drawn with every pixel again

// One point a node, drawn as the sign of its state: a disc, a triangle, a square or a ring, as in the legend. One call draws them all.
const vertex = `
attribute float state;
attribute float shown;
attribute float extra;
uniform float scale;
uniform float least;
uniform float ratio;
uniform float many;
varying float vState;
varying float vExtra;
varying float vFar;
void main() {
  vec4 at = modelViewMatrix * vec4(position, 1.0);
  gl_Position = projectionMatrix * at;
  vState = state; vExtra = extra;
  float bad = state == 2.0 ? 1.0 : 1.2;
  float size = max(scale * bad / -at.z, least * ratio * (state == 2.0 ? 1.0 : 1.7));
  if (many > 0.5 && state == 2.0) size *= 0.55;
  gl_PointSize = shown > 0.5 ? size * (extra > 0.5 ? 1.25 : 1.0) : 0.0;
  if (shown < 0.5) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
  // A NORMAL node hides no other one, and a SICK one hides no FAILED one.
  if (shown > 0.5 && state != 2.0) gl_Position.z = gl_Position.z * 0.01 - (state > 3.5 ? 0.96 : state > 2.5 ? 0.90 : 0.93) * gl_Position.w;
  vFar = state != 2.0 ? 1.0 : many > 0.5 ? 0.5 : clamp(1.0 - (-at.z - 4.0) * 0.006, 0.8, 1.0);
}`
const fragment = `
precision mediump float;
uniform vec3 colours[5];
uniform vec3 edge;
uniform vec3 mark;
varying float vState;
varying float vExtra;
varying float vFar;
void main() {
  vec2 p = gl_PointCoord * 2.0 - 1.0;
  if (vExtra > 0.5) { // chosen: a frame around the sign, for which the point is larger
    p *= 1.25;
  }
  float d; // below 0 inside
  vec3 c = colours[2];
  if (vState < 1.5) { d = abs(length(p) - 0.62) - 0.20; c = colours[1]; }
  else if (vState < 2.5) { d = length(p) - 0.78; }
  else if (vState < 3.5) { d = max(p.y - 0.72, abs(p.x) * 1.65 - p.y - 0.90) * 0.75; c = colours[3]; }
  else { d = max(abs(p.x), abs(p.y)) - 0.70; c = colours[4]; }
  if (vState > 2.5 && vState < 3.5 && d < -0.24 && vExtra < 0.5) discard; // a triangle is hollow: what is behind it stays visible
  if (vExtra > 0.5 && max(abs(p.x), abs(p.y)) > 1.09) gl_FragColor = vec4(mark, 1.0);
  else if (d > 0.16) discard;
  else if (d > 0.0) { gl_FragColor = vec4(edge, 1.0); }
  else {
    float light = vState == 2.0 ? 0.82 + 0.26 * (1.0 - length(p - vec2(-0.3, -0.35))) : 1.0;
    gl_FragColor = vec4(mix(edge, c * light, vFar), 1.0);
  }
  #include <colorspace_fragment>
}`

/** Scene is the torus in three dimensions. It draws only when something has changed. */
export class Scene {
  frames = 0 // drawn since the start
  onPick: (rank: number) => void = () => {}
  onUnnamed: (count: number) => void = () => {} // names of parts that are not normal without room in the drawing
  private readonly renderer: WebGLRenderer
  private readonly three = new Three()
  private readonly camera = new PerspectiveCamera(42, 1, 0.1, 2000)
  private readonly controls: OrbitControls
  private points: Points<BufferGeometry, ShaderMaterial> | undefined
  private good: LineSegments<BufferGeometry, LineBasicMaterial> | undefined
  private bad: LineSegments2 | undefined
  private badMaterial = new LineMaterial({ linewidth: 3.2, vertexColors: true })
  private boxes: LineSegments2 | undefined
  private frameMaterial = new LineMaterial({ linewidth: 2 })
  private framed: Box[] = []
  private model: Model | undefined
  private slice: Slice = { axis: -1, at: 0 }
  private selected = -1
  private wanted = false
  private turning = false
  private position = new Float32Array()
  private colours: Color[] = []
  private gone = false
  private sharp = 1 // of the pixels along each side that are drawn now
  private pace = new Pace() // of the movement
  private moving = false
  private still = 0 // the timer that ends it
  private named: { text: string; state: State; at: [number, number, number]; must: boolean }[] = []
  readonly names = new Names()

  /** nodes is how many there are to draw: smooth edges are dear among many. */
  constructor(private readonly canvas: HTMLCanvasElement, nodes: number) {
    this.renderer = new WebGLRenderer({ canvas, antialias: window.devicePixelRatio < 2 && nodes <= manyNodes, alpha: true, powerPreference: 'low-power' })
    this.controls = new OrbitControls(this.camera, canvas)
    this.controls.enableDamping = false
    this.controls.addEventListener('change', () => this.move())
    this.readColours()
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement!)
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.readColours())
    let down: [number, number] | undefined
    canvas.addEventListener('pointerdown', (e) => { down = [e.clientX, e.clientY] })
    canvas.addEventListener('pointerup', (e) => {
      if (!down || Math.hypot(e.clientX - down[0], e.clientY - down[1]) > 5) return
      const r = this.hit(e.clientX, e.clientY)
      if (r >= 0) this.onPick(r)
    })
    canvas.addEventListener('webglcontextlost', (e) => { e.preventDefault(); this.gone = true })
    canvas.addEventListener('webglcontextrestored', () => { this.gone = false; this.draw() })
    this.resize()
  }

  /** readColours takes them from the style sheet, so that the drawing, the legend and the tables agree. */
  readColours(): void {
    const style = getComputedStyle(document.documentElement)
    const colour = (name: string) => new Color(style.getPropertyValue(name).trim() || '#888')
    this.colours = ['--edge', '--unknown', '--normal', '--sick', '--failed'].map(colour)
    if (this.points) {
      const u = this.points.material.uniforms
      u.colours.value = this.colours
      u.edge.value = colour('--ground')
      u.mark.value = colour('--accent')
    }
    if (this.good) this.good.material.color = colour('--cable')
    this.frameMaterial.color = colour('--ink')
    this.names.readColours()
    if (this.model) this.show(this.model)
  }

  show(m: Model): void {
    const fresh = !this.model || this.model.dims.join() !== m.dims.join()
    this.model = m
    if (fresh) this.build(m)
    const g = this.points!.geometry
    const state = g.getAttribute('state') as BufferAttribute, shown = g.getAttribute('shown') as BufferAttribute, extra = g.getAttribute('extra') as BufferAttribute
    for (let r = 0; r < m.nodes.length; r++) {
      state.array[r] = m.nodes[r]
      shown.array[r] = m.nodes[r] && this.inSlice(r) ? 1 : 0
      extra.array[r] = r === this.selected ? 1 : 0
    }
    for (const a of [state, shown, extra]) a.needsUpdate = true
    this.cables(m)
    this.drawFrames(this.framed)
    this.name(m)
    this.draw()
  }

  /** name chooses the names of the drawing, the gravest first. */
  private name(m: Model): void {
    const few = m.nodes.length <= fewNodes && this.canvas.clientWidth >= 600, nodes = namedNodes(m, this.selected).filter((r) => this.inSlice(r))
    const of = (r: number) => ({ text: m.id(r), state: m.nodes[r] as State, at: this.place(m.coord(r)), must: few || r === this.selected || m.nodes[r] !== NORMAL || m.flags[r] > 0 })
    const cables = badCables(m).filter((c) => this.inSlice(c.rank) && this.slice.axis !== c.d >> 1).map((c) => {
      const at = this.place(m.coord(c.rank))
      at[c.d >> 1] += m.span(c.rank, c.d) / 2
      return { text: cableWords(m, c), state: c.state, at, must: true }
    })
    const bad = nodes.filter((r) => m.nodes[r] !== NORMAL), rest = nodes.filter((r) => m.nodes[r] === NORMAL)
    this.named = [...bad.map(of), ...cables, ...rest.map(of)]
  }

  /** annotate draws axes and names over the picture. */
  private annotate(): void {
    const box = this.canvas.parentElement!.getBoundingClientRect(), m = this.model
    if (!m) return
    const v = new Vector3(), half = Math.tan((this.camera.fov * Math.PI) / 360)
    const on = (at: number[]): [number, number, number] => {
      v.fromArray(at).applyMatrix4(this.camera.matrixWorldInverse)
      const far = -v.z
      v.applyMatrix4(this.camera.projectionMatrix)
      return [((v.x + 1) / 2) * box.width, ((1 - v.y) / 2) * box.height, far]
    }
    const labels: Label[] = []
    for (const n of this.named) {
      const [x, y, far] = on(n.at)
      if (far > this.camera.near) labels.push({ ...n, x, y, off: Math.max(8, (0.25 * box.height) / half / far / 2) })
    }
    const tall = Math.min(window.devicePixelRatio, 2)
    this.onUnnamed(this.names.draw(box.width, box.height, tall, this.axes(m).map(({ name, from, to, ticks }): Axis => {
      const [a, b] = [on(from), on(to)]
      return { name, from: [a[0], a[1]], to: [b[0], b[1]], ticks: ticks.map((t) => { const p = on(t.at); return { at: [p[0], p[1]], text: t.text } }) }
    }), labels))
  }

  /** axes are three edges of the torus, or two of a plane, in its own unit. */
  private axes(m: Model): { name: string; from: number[]; to: number[]; ticks: { at: number[]; text: string }[] }[] {
    const flat = this.slice.axis, c = (k: number, high: boolean) => (k === flat ? this.slice.at : high ? m.dims[k] - 1 + axesOff : -axesOff)
    // The edges that are in front where the camera begins: X below, Y at the left, Z below at the right.
    const edges = [[0, 0, 1], [0, 0, 1], [1, 0, 0]]
    return [0, 1, 2].filter((k) => k !== flat && m.dims[k] > 1).map((k) => {
      const at = (value: number) => this.place(edges[k].map((up, i) => (i === k ? value : c(i, up > 0))))
      const step = Math.ceil(m.dims[k] / 8)
      return {
        name: directions[2 * k], from: at(c(k, false)), to: at(c(k, true)),
        ticks: Array.from({ length: Math.ceil(m.dims[k] / step) }, (_, i) => ({ at: at(i * step), text: String(i * step) })),
      }
    })
  }

  /** frame draws the edges of boxes around the members of group faults, given by their ranks. */
  frame(groups: number[][]): void {
    if (this.model) this.drawFrames(groups.flatMap((ranks) => boxes(this.model!, ranks)))
  }

  /** drawFrames draws as much of the boxes as is in the slice. */
  private drawFrames(all: Box[]): void {
    this.framed = all
    if (this.boxes) { this.three.remove(this.boxes); this.boxes.geometry.dispose() }
    this.boxes = undefined
    const { axis, at } = this.slice, lines: number[] = []
    for (const box of all) {
      if (axis >= 0 && (at < box[0][axis] || at > box[1][axis])) continue
      const corner = (high: number[]) => this.place(high.map((up, k) => (k === axis ? at : box[up][k]) + (up ? margin : -margin)))
      for (let k = 0; k < 3; k++) {
        for (let i = 0; i < 4; i++) {
          const a = [0, 0, 0], b = [0, 0, 0]
          a[(k + 1) % 3] = b[(k + 1) % 3] = i & 1
          a[(k + 2) % 3] = b[(k + 2) % 3] = i >> 1
          b[k] = 1
          lines.push(...corner(a), ...corner(b))
        }
      }
    }
    if (lines.length) {
      const g = new LineSegmentsGeometry()
      g.setPositions(lines)
      this.frameMaterial.depthTest = !this.crowded()
      this.boxes = new LineSegments2(g, this.frameMaterial)
      this.boxes.renderOrder = 1 // after the nodes, which it does not heed among many
      this.three.add(this.boxes)
    }
    this.draw()
  }

  setSlice(s: Slice): void {
    // The eye goes along from one plane to the next.
    if (s.axis >= 0 && s.axis === this.slice.axis && s.at !== this.slice.at) {
      for (const v of [this.camera.position, this.controls.target]) v.setComponent(s.axis, v.getComponent(s.axis) + s.at - this.slice.at)
      this.controls.update()
    }
    this.slice = s
    if (this.points) this.points.material.uniforms.many.value = this.crowded() ? 1 : 0
    if (this.model) this.show(this.model)
  }

  focus(): void { this.canvas.focus() }

  /** step is the rank to which a key leads; undefined: the key does not move. */
  step(from: number, key: string): number | undefined {
    const m = this.model, d = ['ArrowRight', 'ArrowLeft', 'ArrowUp', 'ArrowDown', 'PageUp', 'PageDown'].indexOf(key)
    if (!m || d < 0) return undefined
    return from < 0 ? Math.max(0, m.nodes.findIndex((s) => s > 0)) : m.neighbour(from, d)
  }

  select(rank: number): void {
    this.selected = rank
    if (this.model) this.show(this.model)
  }

  /** turn has the torus turn slowly. */
  turn(on: boolean): void {
    this.turning = on
    this.controls.autoRotate = on
    this.draw()
  }

  /** home puts the camera where all is seen. */
  home(): void {
    if (!this.model) return
    const { axis, at } = this.slice, d = this.model.dims.map((n, k) => (k === axis ? 1 : n)), r = Math.hypot(d[0] - 1, d[1] - 1, d[2] - 1) / 2 + 1.6 // the axes too
    const aspect = this.camera.aspect, half = (this.camera.fov * Math.PI) / 360
    const far = r / Math.sin(Math.min(half, Math.atan(Math.tan(half) * aspect)))
    const from = this.slice.axis < 0 ? [0.55, 0.5, 0.9] : [[1, 0.001, 0.001], [0.001, 1, 0.001], [0.001, 0.001, 1]][this.slice.axis]
    // A plane is looked at from the front.
    const centre = new Vector3()
    if (axis >= 0) centre.setComponent(axis, at - (this.model.dims[axis] - 1) / 2)
    this.camera.position.copy(new Vector3(...(from as [number, number, number])).normalize().multiplyScalar(far).add(centre))
    this.camera.near = far / 100
    this.camera.far = far * 6
    this.camera.updateProjectionMatrix()
    this.controls.target.copy(centre)
    this.controls.update()
    this.draw()
  }

  zoom(by: number): void {
    this.camera.position.sub(this.controls.target).multiplyScalar(by).add(this.controls.target)
    this.controls.update()
    this.draw()
  }

  private place(c: readonly number[]): [number, number, number] {
    const d = this.model!.dims
    return [c[0] - (d[0] - 1) / 2, c[1] - (d[1] - 1) / 2, c[2] - (d[2] - 1) / 2]
  }

  /** crowded: so many nodes are shown that the NORMAL ones would hide the others. */
  private crowded(): boolean {
    return this.slice.axis < 0 && !!this.points && this.points.geometry.getAttribute('position').count > manyNodes
  }

  private inSlice(rank: number): boolean {
    return this.slice.axis < 0 || this.model!.coord(rank)[this.slice.axis] === this.slice.at
  }

  private build(m: Model): void {
    const n = m.nodes.length
    this.position = new Float32Array(3 * n)
    for (let r = 0; r < n; r++) this.position.set(this.place(m.coord(r)), 3 * r)
    if (this.points) { this.three.remove(this.points); this.points.geometry.dispose() }
    const g = new BufferGeometry()
    g.setAttribute('position', new BufferAttribute(this.position, 3))
    for (const name of ['state', 'shown', 'extra']) g.setAttribute(name, new BufferAttribute(new Float32Array(n), 1))
    const material = new ShaderMaterial({
      vertexShader: vertex, fragmentShader: fragment,
      uniforms: { colours: { value: this.colours }, edge: { value: new Color() }, mark: { value: new Color() }, scale: { value: 1 }, least: { value: 4 }, ratio: { value: 1 }, many: { value: 0 } },
    })
    this.points = new Points(g, material)
    this.points.frustumCulled = false
    this.three.add(this.points)
    this.model = undefined // readColours shows the present state
    this.readColours()
    this.model = m
    this.resize()
    this.home()
  }

  /** cables draws each link end from its node to the middle: whole when NORMAL, with a gap at the far end when FAILED, dashed when SICK, dotted when UNKNOWN. */
  private cables(m: Model): void {
    const all = m.nodes.length <= manyNodes || this.slice.axis >= 0
    const good: number[] = [], bad: number[] = [], paint: number[] = []
    for (let i = 0; i < m.links.length; i++) {
      const s = m.links[i]
      if (!s || (s === NORMAL && !all && !m.masked[i])) continue
      const r = Math.floor(i / 6), d = i % 6
      if (!m.nodes[r] || !this.inSlice(r) || (this.slice.axis >= 0 && d >> 1 === this.slice.axis)) continue
      const from = [this.position[3 * r], this.position[3 * r + 1], this.position[3 * r + 2]]
      const stretch = (m.span(r, d) - 0.4) / 0.6 // every end begins at its node's edge, and ends in the middle
      const at = (t: number): number[] => from.map((v, k) => (k === d >> 1 ? v + ((d & 1 ? -1 : 1) * (0.4 + (t - 0.4) * stretch)) / 2 : v))
      if (s === NORMAL && !m.masked[i]) { good.push(...at(0.4), ...at(1)); continue }
      const spans = s === FAILED ? [[0.4, 0.8]] : s === SICK ? [[0.4, 0.56], [0.62, 0.78], [0.84, 1]] : s === UNKNOWN ? [[0.42, 0.5], [0.66, 0.74], [0.92, 1]] : [[0.4, 0.48], [0.92, 1]]
      const c = this.colours[s]
      for (const [a, b] of spans) {
        bad.push(...at(a), ...at(b))
        paint.push(c.r, c.g, c.b, c.r, c.g, c.b)
      }
    }
    if (this.good) { this.three.remove(this.good); this.good.geometry.dispose() }
    if (this.bad) { this.three.remove(this.bad); this.bad.geometry.dispose() }
    this.good = this.bad = undefined
    if (good.length) {
      const g = new BufferGeometry()
      g.setAttribute('position', new BufferAttribute(new Float32Array(good), 3))
      const colour = getComputedStyle(document.documentElement).getPropertyValue('--cable').trim() || '#888'
      this.good = new LineSegments(g, new LineBasicMaterial({ color: colour }))
      this.three.add(this.good)
    }
    if (bad.length) {
      const g = new LineSegmentsGeometry()
      g.setPositions(bad)
      g.setColors(paint)
      this.badMaterial.depthTest = !this.crowded()
      this.bad = new LineSegments2(g, this.badMaterial)
      this.bad.renderOrder = 1
      this.three.add(this.bad)
    }
  }

  private resize(): void {
    const box = this.canvas.parentElement!.getBoundingClientRect()
    if (!box.width || !box.height) return
    const ratio = Math.min(window.devicePixelRatio, 2) * this.sharp
    this.renderer.setPixelRatio(ratio)
    this.renderer.setSize(box.width, box.height, false)
    const was = this.camera.aspect
    this.camera.aspect = box.width / box.height
    this.camera.updateProjectionMatrix()
    this.badMaterial.resolution = this.frameMaterial.resolution = new Vector2(box.width, box.height)
    if (this.points) {
      const u = this.points.material.uniforms
      u.ratio.value = ratio
      // A disc's diameter, in the unit of one cable's length.
      u.scale.value = (0.46 * ratio * box.height) / Math.tan((this.camera.fov * Math.PI) / 360) / 2
      u.many.value = this.crowded() ? 1 : 0
      u.least.value = this.points.geometry.getAttribute('position').count > manyNodes ? 3 : 9
    }
    if (this.model) this.name(this.model) // a narrow window has fewer names
    if (Math.abs(was - this.camera.aspect) > 0.2) this.home()
    this.draw()
  }

  /** hit is the node at a place of the window, the nearest to the eye of those within reach of a finger; -1: none. */
  private hit(x: number, y: number): number {
    const box = this.canvas.getBoundingClientRect(), m = this.model
    if (!m) return -1
    const p = new Vector3()
    let best = -1, score = Infinity
    for (let r = 0; r < m.nodes.length; r++) {
      if (!m.nodes[r] || !this.inSlice(r)) continue
      p.fromArray(this.position, 3 * r).project(this.camera)
      const d = Math.hypot(((p.x + 1) / 2) * box.width + box.left - x, ((1 - p.y) / 2) * box.height + box.top - y)
      if (p.z > 1 || d > 20) continue
      const s = d + p.z * 200 - (m.nodes[r] === NORMAL ? 0 : 12) // the others are drawn in front
      if (s < score) { score = s; best = r }
    }
    return best
  }

  /** move draws what moves, as sharply as is fluid. */
  private move(): void {
    this.moving = true
    clearTimeout(this.still)
    this.still = window.setTimeout(() => {
      if (this.wanted) return this.move() // a frame takes longer than that
      this.moving = false
      this.pace = new Pace()
      this.sharpen(1)
    }, stillAfter)
    this.draw()
  }

  private sharpen(to: number): void {
    if (to === this.sharp) return
    this.sharp = to
    this.resize()
  }

  private draw(): void {
    if (this.wanted) return
    this.wanted = true
    const since = performance.now()
    requestAnimationFrame(() => {
      this.wanted = false
      if (this.gone) return
      if (this.moving) {
        this.pace.took(performance.now() - since)
        this.sharpen(this.pace.sharp)
      }
      if (this.turning) this.controls.update()
      this.renderer.render(this.three, this.camera)
      this.annotate()
      this.frames++
      this.canvas.dataset.frames = String(this.frames)
      this.canvas.dataset.distance = this.camera.position.distanceTo(this.controls.target).toFixed(3)
      if (this.turning) this.move()
    })
  }
}
