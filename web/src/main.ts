import './style.css'
import { api, Refused, Stream, type Session } from './api'
import { badge, frame, h, mark, put, span, time } from './dom'
import { groupSize, showGroup, showNode } from './detail'
import { Events } from './events'
import { Incidents } from './incidents'
import { Change, type Group, type Incident, Model, NORMAL, type Standing, causeNames, flagWords, folded, groupWords, pastGroups, planeOffer, stateNames } from './model'
import { Responses } from './responses'
import type { Scene } from './scene'
import { Tiles } from './tiles'
import { Timeline } from './timeline'
import { type Words, wordsOf } from './words'

const maxEvents = 600 // that the list shows, consequences included
const maxRows = 300 // of the table of nodes

/** theme follows the system until a person chooses one. */
function theme(choice?: string): void {
  if (choice) localStorage.setItem('lofamo-theme', choice)
  const stored = localStorage.getItem('lofamo-theme')
  document.documentElement.dataset.theme = stored ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')
}

/** fromLink takes a login out of the address, where no server sees it, and out of the browser's history. #node=ID is a link to a node, as dashboards have it. */
function fromLink(): { login: string | null; from: string | null; node: string | null } {
  const p = new URLSearchParams(location.hash.slice(1))
  if (p.has('login') || p.has('node')) history.replaceState(null, '', '/')
  return { login: p.get('login'), from: p.get('from'), node: p.get('node') }
}

async function begin(): Promise<void> {
  theme()
  const { login, from, node } = fromLink()
  let why = ''
  if (login) {
    try { await api.login(login) } catch (e) { why = e instanceof Refused ? e.message : 'The supervisor does not answer.' }
  }
  try {
    const session = await api.session()
    new Page(session, from, node).start()
  } catch (e) {
    loginPage(why || (e instanceof Refused ? (login || e.status !== 401 ? e.message : '') : 'The supervisor does not answer.'))
  }
}

function loginPage(why: string): void {
  put(document.body, h('main', { class: 'center' }, h('h1', {}, 'LO|FA|MO'), why ? h('p', { role: 'alert' }, why) : null,
    h('p', {}, 'To see the fault map, ask for a link on a machine where your certificate is:'),
    h('p', {}, h('code', {}, 'lofamoctl web')), h('p', {}, 'and if that command knows the cluster by no context:'),
    h('p', {}, h('code', {}, `lofamoctl web --ca ca.pem --cert me.pem --key me.key --address ${location.host}`)),
    h('p', {}, 'It works once, within a minute. ', h('button', { onclick: () => location.reload() }, 'Try again'))))
}

/** hints are the keys of the map and their effects. The first ones are the legend of directions. */
const hints = [['→ ←', 'X+ X-'], ['↑ ↓', 'Y+ Y-'], ['PgUp PgDn', 'Z+ Z-'], ['I', 'next incident'], ['N', 'next that is not normal'], ['G', 'next group fault'], ['Enter', 'open'], ['+ -', 'zoom'], ['0', 'all']]

/** tileHints are the keys of the tiles. */
const tileHints = [['→ ← ↑ ↓', 'next node'], ...hints.filter(([keys]) => ['I', 'N', 'G', 'Enter'].includes(keys))]
const keyWords = 'I goes to the next incident, N to the next node that is not normal, G to the next group fault, Enter shows a node and Escape leads back'

/** Picture is the drawing of all nodes: a torus, or the tiles of an ordinary cluster. */
interface Picture {
  onPick: (rank: number) => void
  show(m: Model): void
  frame(groups: number[][]): void
  select(rank: number): void
  focus(): void
  step(from: number, key: string): number | undefined
}

type Tab = 'incidents' | 'events' | 'nodes' | 'responses' | 'node'

class Page {
  private model!: Model
  private shown!: Model
  private stream: Stream | undefined
  private standing: Standing | undefined
  private heardAt = 0
  private lostAt = 0
  private revision = 0
  private picture: Picture | undefined
  private scene: Scene | undefined // the picture of a torus
  private drawing = 0 // counts the choices of a picture: loading one takes time
  private tab: Tab = 'incidents'
  private selected = -1
  private groups: Group[] = [] // that stand now
  private incident = '' // id of the one that the keyboard has led to
  private group = '' // id of the one whose page is shown; empty: a node's is
  private filter = ''
  private wantDraw = false
  private mapTimer = 0
  private groupTimer = 0
  private ended = false
  private mapped: () => void = () => {} // a map was read after none could be
  private readonly main = h('main')
  private readonly responses = new Responses(() => this.session)
  private readonly incidents: Incidents = new Incidents(() => this.session, () => Date.now() + this.session.skew, () => this.words())
  private readonly events = new Events()
  private readonly timeline = new Timeline(() => Date.now() + this.session.skew)
  private readonly counts = h('ul', { class: 'counts', 'aria-label': 'Nodes by state' })
  private readonly status = h('span', { class: 'pill', id: 'status', role: 'status' })
  private readonly banner = h('div', { id: 'banner', role: 'status' })
  private readonly breaker = h('div', { id: 'breaker', role: 'alert' })
  private readonly stage = h('section', { id: 'stage' })
  private readonly view = h('div', { id: 'view' })
  private readonly tools = h('div', { id: 'tools' })
  private readonly hints = h('div', { class: 'hints' })
  private readonly keys = h('p', { id: 'keys', class: 'visually-hidden' })
  private readonly canvas = h('canvas', { id: 'torus', tabindex: 0, role: 'img', 'aria-describedby': 'keys' })
  private readonly chosen = h('div', { id: 'chosen', 'aria-live': 'polite' })
  private readonly panel = h('div', { class: 'tabpanel', id: 'panel', role: 'tabpanel', tabindex: 0 })
  private readonly tabs = new Map<Tab, HTMLButtonElement>()
  private readonly sliceAt = h('input', { type: 'range', min: 0, max: 0, value: 0, 'aria-label': 'Number of the plane' })
  private readonly sliceAxis = h('select', { 'aria-label': 'Planes to show' })
  private readonly sliceSays = h('output')
  private readonly unnamed = h('span', { id: 'unnamed' })
  private readonly offer = h('button', { id: 'offer', hidden: true, onclick: () => this.takeOffer() })

  constructor(private session: Session, private readonly from: string | null, private wanted: string | null) {}

  async start(): Promise<void> {
    this.build()
    this.responses.onChange = () => { this.renderBreaker(); this.renderTabs() }
    this.incidents.onChange = () => this.hearIncidents()
    this.timeline.onChange = () => this.renderAll()
    // A link in a tab where the page is already: of a dashboard, or a login: another person's, or this one's when the session has ended.
    addEventListener('hashchange', () => {
      if (new URLSearchParams(location.hash.slice(1)).has('login')) return location.reload() // the page begins with it
      const { node } = fromLink()
      if (node && this.model) this.choose(node)
      else if (node) this.wanted = node
    })
    setInterval(() => this.tick(), 1000)
    setInterval(() => void this.renew(), 240_000) // handovers to other supervisors last ten minutes
    // Who has room for a session may have none for this question, when many pages come at once from a supervisor that was lost.
    try { await this.loadMap() } catch { await new Promise<void>((done) => { this.mapped = done; this.lost() }) }
    this.lostAt = 0
    this.say('', false)
    this.main.inert = false
    await this.draw()
    if (this.wanted) this.choose(this.wanted)
    if (this.from) this.say(`Supervisor ${this.from} was lost: this page now shows ${this.session.supervisor}.`, false)
  }

  /** draw chooses the picture that fits the map, and shows it. */
  private async draw(): Promise<void> {
    const ordinary = this.model.kind.ordinary
    if (this.picture && ordinary === !this.scene) return
    const turn = ++this.drawing
    try {
      const three = ordinary ? undefined : await import('./scene')
      if (turn !== this.drawing) return // the map has changed meanwhile
      this.stage.classList.toggle('ordinary', ordinary)
      this.stage.setAttribute('aria-label', ordinary ? 'The nodes' : 'The torus')
      this.scene = three && this.torus(three.Scene)
      this.picture = this.scene ?? this.tiles()
    } catch (e) {
      put(this.view, h('p', { class: 'center' }, `This browser cannot draw in three dimensions: the table of nodes shows everything. (${e instanceof Error ? e.message : e})`))
      return this.show('nodes')
    }
    this.picture.onPick = (r) => this.select(r, true)
    put(this.keys, ordinary ? `Arrow keys go from node to node; ${keyWords}.` : `Arrow keys, page up and page down go from node to node along X, Y and Z; ${keyWords}, + and - zoom, 0 shows all.`)
    put(this.hints, ...(ordinary ? tileHints : hints).map(([keys, what]) => h('span', {}, ...keys.split(' ').map((k) => h('kbd', {}, k)), what)))
    this.picture.select(this.selected)
    this.renderAll()
  }

  /** torus makes the drawing of a torus, which measures its place on the page. */
  private torus(of: typeof Scene): Scene {
    put(this.view, this.canvas, this.keys, this.tools, this.chosen)
    const scene = new of(this.canvas, this.model.nodes.length)
    scene.onUnnamed = (n) => { const text = n ? `${n} names have no room: see Nodes` : ''; if (this.unnamed.textContent !== text) put(this.unnamed, text) }
    this.canvas.after(scene.names.canvas)
    return scene
  }

  private tiles(): Tiles {
    const tiles = new Tiles()
    put(this.view, tiles.element, this.keys)
    return tiles
  }

  private build(): void {
    for (const [t, name] of [['incidents', 'Incidents'], ['nodes', 'Nodes'], ['events', 'Events'], ['responses', 'Responses'], ['node', 'Node']] as [Tab, string][]) {
      this.tabs.set(t, h('button', { role: 'tab', id: 'tab-' + t, 'aria-controls': 'panel', onclick: () => this.show(t), onkeydown: (e: KeyboardEvent) => this.tabKey(e) }, name))
    }
    for (const [v, name] of [['-1', 'whole torus'], ['0', 'plane X ='], ['1', 'plane Y ='], ['2', 'plane Z =']]) this.sliceAxis.append(h('option', { value: v }, name))
    const slice = () => this.setSlice()
    this.sliceAxis.addEventListener('change', () => { slice(); this.scene?.home() })
    this.sliceAt.addEventListener('input', slice)
    const turn = h('button', { 'aria-pressed': 'false', id: 'turn', onclick: () => {
      const on = turn.getAttribute('aria-pressed') !== 'true'
      turn.setAttribute('aria-pressed', String(on))
      this.scene?.turn(on)
    } }, 'Turn')
    const other = () => { theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); this.scene?.readColours(); this.timeline.refresh() }
    this.view.addEventListener('keydown', (e) => { if (!this.tools.contains(e.target as Node)) this.key(e) })
    put(this.tools, h('label', {}, this.sliceAxis, this.sliceAt, this.sliceSays), h('button', { onclick: () => this.scene?.home() }, 'All'), turn, this.offer)
    this.panel.addEventListener('keydown', (e) => this.panelKey(e))
    put(document.body,
      h('header', {}, h('h1', {}, 'LO|FA|MO'), h('span', { class: 'soft', id: 'cluster' }, `${this.session.cluster} at ${this.session.supervisor}`), this.status, this.counts, h('span', { class: 'grow' }),
        h('span', { class: 'soft', id: 'who', title: this.session.subject }, this.session.subject), h('button', { onclick: other, 'aria-label': 'Light or dark' }, '◐'),
        h('button', { onclick: () => void this.logout() }, 'Log out')),
      this.breaker,
      this.banner,
      this.main)
    this.main.inert = true // until there is a map
    put(this.stage, this.view, h('div', { id: 'legend', 'aria-hidden': 'true' },
      h('div', {}, ...['NORMAL', 'SICK', 'FAILED', 'UNKNOWN'].map((s) => h('span', {}, mark(s), s.toLowerCase())), h('span', {}, frame(), 'group fault'), this.unnamed), this.hints))
    put(this.main, this.stage,
        this.timeline.element,
        h('aside', { 'aria-label': 'Details' }, h('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Details' }, ...this.tabs.values()), this.panel))
    this.tick()
  }

  private async loadMap(): Promise<void> {
    const m = await api.map()
    this.model = Model.of(m)
    this.revision = m.revision
    this.standing = m.standing
    const axis = Number(this.sliceAxis.value)
    if (axis >= 0) this.sliceAt.max = String(m.dims[axis] - 1)
    this.setSlice()
    this.follow()
    this.renderAll()
    if (this.picture) void this.draw() // the first nodes of a cluster may make another picture fit
    this.loadGroups()
    void this.catchUp(m.revision)
  }

  /** catchUp reads the events that the stream omits, because it continues from a map. If that takes too long, the page shows only new ones. */
  private async catchUp(revision: number): Promise<void> {
    for (let tries = 0; tries < 5 && !this.ended; tries++) {
      try {
        await (tries ? this.timeline.load() : this.timeline.catchUp(revision)) // the stream may have told later ones meanwhile
        return this.renderSoon()
      } catch { await new Promise((done) => setTimeout(done, 1000 + 1000 * Math.random())) }
    }
  }

  /** loadGroups reads the group faults: events name them without their members. The faults of a dying plane come together. Only the answer to the last request counts; a refused request is repeated. */
  private loadGroups(after = 100): void {
    clearTimeout(this.groupTimer)
    const asked = this.groupTimer = window.setTimeout(() => {
      void api.groups(this.revision).then((all) => {
        if (asked !== this.groupTimer) return
        this.groups = all
        this.renderAll()
      }, (e) => {
        const never = this.ended || e instanceof Refused && (e.status < 500 || e.status === 501)
        if (asked === this.groupTimer && !never) this.loadGroups(500 + 1000 * Math.random())
      })
    }, after)
  }

  private follow(): void {
    this.stream?.close()
    this.stream = new Stream(this.revision, this.session.aliveMs, {
      changes: (c, rev) => this.hear(c, rev),
      responses: (r, all) => this.responses.hear(r, all),
      noResponses: (why) => this.responses.unavailable(why),
      incidents: (r, all) => this.incidents.hear(r, all),
      noIncidents: (why) => this.incidents.unavailable(why),
      alive: (s) => { this.standing = s; this.alive() },
      reset: () => void this.again(),
      lost: () => this.lost(),
    })
  }

  private alive(): void {
    this.heardAt = Date.now()
    if (this.lostAt) {
      this.say('', false)
      this.lostAt = 0
    }
    this.tick()
  }

  private hear(changes: Change[], revision: number): void {
    this.alive()
    this.revision = revision || this.revision
    if (!changes.length) return
    let drawn = false, reload = false
    for (const c of changes) {
      drawn = this.model.apply(c) || drawn
      // What these change is not in them: places, marks, whole regions.
      reload ||= ['TOPOLOGY_CHANGED', 'REGION_CHANGED', 'MAINTENANCE_CHANGED', 'WARNING_CHANGED', 'MASK_CHANGED'].includes(c.kind ?? '')
    }
    if (changes.some((c) => c.kind === 'GROUP_CHANGED')) this.loadGroups()
    if (this.tab === 'node') this.changed(changes)
    this.timeline.add(changes)
    if (reload) {
      clearTimeout(this.mapTimer)
      this.mapTimer = window.setTimeout(() => void this.again(), 300)
    }
    if (drawn || this.tab === 'events') this.renderSoon()
  }

  /** again reads the map again. */
  private async again(): Promise<void> {
    try { await this.loadMap() } catch { this.lost() }
  }

  private lost(): void {
    if (this.ended) return
    this.stream?.close()
    this.lostAt ||= Date.now()
    this.tick()
    setTimeout(() => void this.regain(), 700)
  }

  /** regain tries this supervisor, and when it has not answered for a while the others. */
  private async regain(): Promise<void> {
    try {
      this.session = await api.session()
      await this.loadMap()
      this.mapped()
      return
    } catch (e) {
      if (e instanceof Refused && e.status === 401) {
        this.ended = true
        this.say(e.message, true)
        return
      }
    }
    this.say('', true)
    if (Date.now() - this.lostAt > 3000) {
      for (const o of this.session.others) {
        try {
          await fetch(o.url + '/api/address', { mode: 'no-cors', signal: AbortSignal.timeout(1500) })
          location.href = this.elsewhere(o)
          return
        } catch { /* not there either, or a certificate that the browser does not trust: the link is on the page */ }
      }
    }
    setTimeout(() => void this.regain(), 1000)
  }

  private elsewhere(o: { url: string; token: string }): string {
    return `${o.url}/#login=${o.token}&from=${encodeURIComponent(this.session.supervisor)}`
  }

  private async renew(): Promise<void> {
    try { this.session = await api.session() } catch { /* the stream notices */ }
  }

  private async logout(): Promise<void> {
    this.ended = true
    this.stream?.close()
    try { await api.logout() } catch { /* the cookie ends by itself */ }
    location.reload()
  }

  /** say shows a line above the map, until it is another one. */
  private say(text: string, lost: boolean): void {
    this.banner.className = lost ? 'lost' : ''
    const others = lost ? this.session.others.map((o) => h('a', { href: this.elsewhere(o) }, `go to ${o.id}`)) : []
    put(this.banner, ...(text || lost ? [text || `Supervisor ${this.session.supervisor} does not answer: ${this.revision ? 'the page shows the last state received' : 'there is no map yet'}. Trying again…`, ...others] : []))
  }

  /** tick shows how old the map is. */
  private tick(): void {
    const s = this.standing
    let kind = 'live', text = 'live'
    if (this.lostAt) { kind = 'lost'; text = `lost for ${span(Date.now() - this.lostAt)}` }
    else if (s?.stale) { kind = 'stale'; text = s.staleMs >= 0 ? `stale for ${span(s.staleMs)}: no leader` : 'stale: no leader' }
    else if (s?.cutOff.length) { kind = 'stale'; text = `cut off: ${s.cutOff.join(', ')}` }
    else if (!this.heardAt) { kind = 'stale'; text = 'connecting' }
    if (this.status.className !== 'pill ' + kind || !text.startsWith('live')) {
      this.status.className = 'pill ' + kind
      if (this.status.textContent !== text) put(this.status, text)
    }
    document.title = `${this.lostAt ? '(lost) ' : ''}LO|FA|MO ${this.session.cluster}`
    if (this.timeline.at === undefined && !document.hidden) this.timeline.refresh()
    if (!document.hidden) for (const e of this.panel.querySelectorAll<HTMLElement>('[data-since]')) this.incidents.age(e)
  }

  private renderSoon(): void {
    if (this.wantDraw) return
    this.wantDraw = true
    requestAnimationFrame(() => { this.wantDraw = false; this.renderAll() })
  }

  private renderAll(): void {
    this.timeline.setLive(this.model)
    this.shown = this.timeline.shown() ?? this.model
    const c = this.shown.counts()
    const groups = this.groupsShown()
    put(this.counts, ...[4, 3, 1, 2].map((s) => h('li', { title: stateNames[s].toLowerCase() }, mark(stateNames[s]), h('b', { 'data-count': stateNames[s] }, String(c[s])), h('span', { class: 'soft' }, stateNames[s].toLowerCase()))),
      this.incidents.all.size ? h('li', {}, h('b', { id: 'incidents' }, String(this.incidents.all.size)), h('span', { class: 'soft' }, this.incidents.all.size > 1 ? 'incidents' : 'incident')) : null,
      groups.length ? h('li', {}, frame(), h('b', { id: 'groups' }, String(groups.length)), h('span', { class: 'soft' }, groups.length > 1 ? 'group faults' : 'group fault')) : null)
    this.canvas.setAttribute('aria-label', `Torus of ${this.shown.dims.join(' by ')}: ${[4, 3, 1, 2].map((s) => `${c[s]} ${stateNames[s].toLowerCase()}`).join(', ')}`)
    this.picture?.show(this.shown)
    this.picture?.frame(groups.map((g) => (g.members ?? []).map((n) => this.shown.find(n)).filter((r) => r >= 0)))
    if (this.timeline.at === undefined) this.timeline.refresh()
    this.renderOffer()
    this.renderTabs()
    this.renderChosen()
  }

  /** renderOffer offers the plane with most faults where nodes in front hide others. */
  private renderOffer(): void {
    const o = planeOffer(this.shown)
    this.offer.hidden = !o || (Number(this.sliceAxis.value) === o.axis && Number(this.sliceAt.value) === o.at)
    if (o) put(this.offer, `Show plane ${'XYZ'[o.axis]} = ${o.at}: ${o.shown} of ${o.all} nodes and cables that are not normal`)
  }

  private takeOffer(): void {
    const o = planeOffer(this.shown)
    if (!o) return
    this.sliceAxis.value = String(o.axis)
    this.sliceAt.max = String(this.model.dims[o.axis] - 1)
    this.sliceAt.value = String(o.at)
    this.setSlice()
    this.scene?.home()
  }

  /** renderBreaker says across the page that no response acts, and how that ends. */
  private renderBreaker(): void {
    const b = this.responses.breaker
    if (!b?.open) return put(this.breaker)
    if (this.breaker.firstChild) return // an alert is read aloud once
    put(this.breaker, h('b', {}, 'The circuit breaker is open: only notifications start.'), b.detail ? ` ${b.detail}.` : '', ...(b.at ? [' Since ', time(Date.parse(b.at)), '.'] : []),
      ' When you know the cause, close it: ', h('code', {}, "lofamoctl response breaker close --reason 'why'"))
  }

  private words(): Words { return wordsOf(!!this.model?.kind.ordinary) }

  /** groupsShown are those of the moment that is shown. */
  private groupsShown(): Group[] { return this.timeline.at === undefined ? this.groups : pastGroups(this.groups, this.timeline.events, this.timeline.at) }

  private renderTabs(): void {
    const names: Record<Tab, string> = { incidents: `Incidents (${this.incidents.all.size})`, events: 'Events', nodes: `Nodes (${this.shown?.notNormal().length ?? 0})`, responses: `Responses (${this.responses.waiting() || this.responses.all.size})`, node: this.group ? groupWords(this.groups.find((g) => g.id === this.group) ?? { id: this.group }, this.words()) : this.selected >= 0 ? this.model.id(this.selected) : 'Node' }
    for (const [t, b] of this.tabs) {
      b.textContent = names[t]
      b.setAttribute('aria-selected', String(t === this.tab))
      b.tabIndex = t === this.tab ? 0 : -1
    }
    this.panel.setAttribute('aria-labelledby', 'tab-' + this.tab)
    this.panel.classList.toggle('of-now', this.timeline.at !== undefined && ['node', 'responses', 'incidents'].includes(this.tab))
    const focused = document.activeElement?.closest<HTMLElement>('[data-line]')?.dataset.line
    if (this.tab === 'events') this.renderEvents()
    if (this.tab === 'nodes') this.renderNodes()
    if (focused) this.panel.querySelector<HTMLElement>(`[data-line="${CSS.escape(focused)}"] button`)?.focus({ preventScroll: true }) // the lists were rebuilt
    if (this.tab === 'responses') this.responses.show(this.panel, (n) => this.choose(n))
    if (this.tab === 'incidents') this.showIncidents()
  }

  private show(t: Tab): void {
    this.tab = t
    put(this.panel)
    this.renderTabs()
    if (t === 'node') this.loadNode()
  }

  /** panelKey returns to the map if the person came from there. */
  private panelKey(e: KeyboardEvent): void {
    if (e.key === 'Escape' && !e.defaultPrevented) this.picture?.focus()
  }

  private tabKey(e: KeyboardEvent): void {
    const all = [...this.tabs.keys()], step = e.key === 'ArrowRight' ? 1 : e.key === 'ArrowLeft' ? -1 : 0
    if (!step) return
    e.preventDefault()
    this.show(all[(all.indexOf(this.tab) + step + all.length) % all.length])
    this.tabs.get(this.tab)!.focus()
  }

  private renderEvents(): void {
    const until = this.timeline.at, all = this.timeline.events, list = (until === undefined ? all : all.filter((e) => e.time <= until)).slice(-maxEvents)
    const members = (id: string) => this.groups.find((g) => g.id === id)?.members ?? []
    this.events.show(this.panel, this.model, folded(this.model, list, members), (n) => this.choose(n), (id) => this.chooseGroup(id))
  }

  private renderNodes(): void {
    let body = this.panel.querySelector('tbody')
    if (!body) {
      const input = h('input', { type: 'search', placeholder: this.model.kind.ordinary ? 'name, state or cause' : 'id, 1,0,1, state or cause', 'aria-label': 'Find nodes', value: this.filter, oninput: () => { this.filter = input.value; this.renderNodes() } })
      body = h('tbody')
      put(this.panel, h('div', { id: 'grouplist' }), h('div', { class: 'search' }, input), h('table', {}, h('caption', { class: 'soft', id: 'rows' }), h('thead', {}, h('tr', {}, ...['node', this.model.kind.ordinary ? '' : 'place', 'state', 'cause'].filter(Boolean).map((t) => h('th', { scope: 'col' }, t)))), body))
    }
    put(this.panel.querySelector('#grouplist')!, ...this.groupsShown().map((g) => h('div', { class: 'card group', 'data-group': g.id, 'data-line': g.id }, frame(), h('button', { class: 'link', onclick: () => this.chooseGroup(g.id) }, groupWords(g, this.words())), ' ', badge(g.state), ' ',
      h('span', { class: 'soft' }, [g.cause && g.cause !== 'NONE' ? g.cause : '', groupSize(g)].filter(Boolean).join(', ')))))
    const m = this.shown, f = this.filter.trim().toLowerCase()
    let ranks: number[]
    if (!f) ranks = m.notNormal()
    else ranks = [...m.nodes.keys()].filter((r) => m.nodes[r] && (m.id(r).toLowerCase().includes(f) || (!m.kind.ordinary && m.coord(r).join(',').startsWith(f)) || stateNames[m.nodes[r]].toLowerCase() === f || (causeNames[m.causes[r]] ?? '').toLowerCase() === f))
    put(this.panel.querySelector('#rows')!, f ? `${ranks.length} found` : ranks.length ? `${ranks.length} not normal` : `all ${m.counts()[NORMAL]} nodes are normal; search to list others`, ranks.length > maxRows ? `, the first ${maxRows} are shown` : '')
    put(body, ...ranks.slice(0, maxRows).map((r) => h('tr', { 'data-node': m.id(r), 'data-line': m.id(r), 'data-state': stateNames[m.nodes[r]] }, h('td', {}, h('button', { class: 'link', onclick: () => this.select(r, true) }, m.id(r))), m.kind.ordinary ? null : h('td', { class: 'mono' }, m.coord(r).join(',')),
      h('td', {}, badge(stateNames[m.nodes[r]])), h('td', { class: 'soft' }, [causeNames[m.causes[r]] ?? '', flagWords(m.flags[r])].filter(Boolean).join(', ')))))
  }

  /** hearIncidents: a supervisor without a list of incidents begins with events. */
  private hearIncidents(): void {
    if (this.incidents.none && this.tab === 'incidents') this.tab = 'events'
    if (this.model) this.renderSoon()
    else this.renderTabs()
  }

  private showIncidents(): void {
    this.incidents.show(this.panel, { node: (n) => this.choose(n), group: (id) => this.chooseGroup(id), mark: (i) => this.mark(i), responses: () => this.show('responses') })
  }

  /** mark selects the node of an incident on the map, or the first member of a group. */
  private mark(i: Incident): void {
    const r = this.model.find(i.node || this.groups.find((g) => g.id === i.group)?.members?.[0] || '')
    if (r >= 0) this.select(r, false)
  }

  private choose(node: string): void {
    const r = this.model.find(node)
    if (r >= 0) this.select(r, true)
  }

  private chooseGroup(id: string): void {
    this.group = id
    this.show('node')
  }

  private select(rank: number, open: boolean): void {
    this.selected = rank
    this.group = ''
    const axis = Number(this.sliceAxis.value)
    if (axis >= 0) {
      this.sliceAt.value = String(this.model.coord(rank)[axis])
      this.setSlice()
    }
    this.picture?.select(rank)
    this.renderChosen()
    if (open) this.show('node')
    else this.renderTabs()
  }

  private renderChosen(): void {
    const r = this.selected
    put(this.chosen, ...(r >= 0 && this.shown.nodes[r] ? [h('button', { class: 'link', title: 'all of it', onclick: () => { this.group = ''; this.show('node'); this.panel.focus() } }, this.shown.id(r)), ' ', badge(stateNames[this.shown.nodes[r]]), ' ', causeNames[this.shown.causes[r]] ?? ''] : []))
  }

  private loadNode(): void {
    if (this.group) return this.loadGroup(this.group)
    const r = this.selected
    if (r < 0) return put(this.panel, h('p', { class: 'soft' }, 'Choose a node on the map, in the table, or with the keyboard.'))
    put(this.panel, h('h2', {}, this.model.id(r)), h('p', { class: 'soft' }, 'Asking…'))
    void showNode(this.panel, this.model, r, this.groups, (to) => this.select(to, true), (id) => this.chooseGroup(id), () => this.tab === 'node' && this.selected === r && !this.group)
  }

  /** changed marks a page as outdated. The page keeps its contents while a person reads it. */
  private changed(changes: Change[]): void {
    const id = this.selected >= 0 ? this.model.id(this.selected) : ''
    if (!changes.some((c) => (this.group ? c.group === this.group : c.node === id)) || this.panel.querySelector('#changed')) return
    this.panel.prepend(h('p', { id: 'changed', role: 'status' }, 'This has changed since. ', h('button', { onclick: () => { this.loadNode(); this.panel.focus() } }, 'Read it again')))
  }

  private loadGroup(id: string): void {
    const g = this.groups.find((g) => g.id === id)
    put(this.panel, h('h2', {}, groupWords(g ?? { id }, this.words())), h('p', { class: 'soft' }, 'Asking…'))
    void showGroup(this.panel, this.model, g ?? { id, kind: '', state: '' }, (n) => this.choose(n), () => this.tab === 'node' && this.group === id)
  }

  private setSlice(): void {
    const axis = Number(this.sliceAxis.value)
    this.sliceAt.hidden = axis < 0
    if (axis >= 0) this.sliceAt.max = String(this.model.dims[axis] - 1)
    put(this.sliceSays, axis < 0 ? '' : this.sliceAt.value)
    this.scene?.setSlice({ axis, at: Number(this.sliceAt.value) })
    if (this.shown) this.renderOffer()
  }

  private key(e: KeyboardEvent): void {
    if (e.ctrlKey || e.metaKey || e.altKey) return
    const to = this.picture?.step(this.selected, e.key)
    if (to !== undefined) this.select(to, false)
    else if (e.key === 'n' || e.key === 'N') {
      const all = this.shown.notNormal()
      if (all.length) this.select(all[(all.indexOf(this.selected) + 1) % all.length], false)
    } else if ((e.key === 'i' || e.key === 'I') && this.incidents.all.size) {
      const all = this.incidents.sorted()
      this.incident = all[(all.findIndex((x) => x.id === this.incident) + 1) % all.length].id
      this.show('incidents')
      this.mark(this.incidents.all.get(this.incident)!)
      this.panel.querySelector(`[data-incident="${CSS.escape(this.incident)}"]`)?.scrollIntoView({ block: 'nearest' })
    } else if (e.key === 'Enter' && this.selected >= 0) {
      this.show('node')
      this.panel.focus() // on a phone it is below the map
    }
    else if ((e.key === 'g' || e.key === 'G') && this.groupsShown().length) {
      const all = this.groupsShown()
      this.chooseGroup(all[(all.findIndex((g) => g.id === this.group) + 1) % all.length].id)
    }
    else if (e.key === '+') this.scene?.zoom(0.85)
    else if (e.key === '-') this.scene?.zoom(1 / 0.85)
    else if (e.key === '0') this.scene?.home()
    else return
    e.preventDefault()
  }
}

void begin()
