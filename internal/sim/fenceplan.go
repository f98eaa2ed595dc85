package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// FencePlan makes the nodes of a story fence themselves, and its leaders respond to dead and silent nodes with a step that rests on that.
type FencePlan struct {
	Fences
	Margin   time.Duration // responses.fenceMargin
	Executor response.Kind // of the step that rests on the fencing
}

const fencePolicy = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: detach}
spec:
  mode: enforce
  match: fault.component == "node" && (fault.state == "FAILED" || fault.state == "UNKNOWN")
  steps:
  - {name: fence, executor: node.fence, timeout: 1h, retries: 10}
  - {name: detach, executor: %s, parameters: {%s}, timeout: 5s, retries: 10}
  undo: {onRecovery: true, after: 1s}
`

// executors of the steps that rest on a fencing, and their parameters. The engine asks for more evidence the graver they are.
var executors = map[response.Kind]string{
	response.WebhookNotify: "target: storage", response.KubernetesTaint: "key: example.org/out, effect: NoSchedule",
	response.WebhookRemediate: "target: storage",
}

// configure sets the responses of a world. Only the fencing holds back a step, and nothing caps their number.
func (p *FencePlan) configure(cfg *Config) error {
	docs, err := policy.Parse(fmt.Appendf(nil, fencePolicy, p.Executor, executors[p.Executor]))
	if err != nil {
		return err
	}
	limits := response.Default()
	limits.MaxNodes, limits.MaxPercent, limits.MaxPerPlane, limits.MaxPerDomain, limits.Rate = 1000, 100, 1000, 1000, 100_000
	limits.BreakerPercent, limits.BreakerNodes = 50, 1000
	limits.Grace, limits.StormDelay, limits.Cooldown = time.Second, 0, 0
	limits.RetryAfter, limits.RetryMost, limits.FenceMargin = time.Second, 2*time.Second, p.Margin
	limits.SharedMargin = cfg.Periods.LeastFenceMargin()
	fences := p.Fences
	cfg.Fences = &fences
	cfg.Responses = &Responses{Limits: limits, Policies: policy.Policies(docs)}
	return nil
}

// fencingShapes are the tori of these stories.
var fencingShapes = []shape{
	{grid.Dims{X: 3, Y: 1, Z: 1}, 2}, {grid.Dims{X: 4, Y: 1, Z: 1}, 2}, {grid.Dims{X: 5, Y: 1, Z: 1}, 1}, {grid.Dims{X: 2, Y: 2, Z: 1}, 2},
	{grid.Dims{X: 3, Y: 2, Z: 1}, 3}, {grid.Dims{X: 2, Y: 2, Z: 2}, 2}, {grid.Dims{X: 3, Y: 3, Z: 1}, 1},
}

// maxDrift is the error of a clock that the stories allow: 500 ppm is how much NTP slews a clock.
const maxDrift = 0.0005

// fencer invents stories of nodes that fence themselves.
type fencer struct {
	*author
	*FencePlan
	n           grid.Coord // the node that is cut off
	acts        []string
	only        disturbance
	synchronous bool // Plan.Synchronous
}

// disturbance is a kind of fault beside a cut.
type disturbance int

// Some kinds.
const (
	anyDisturbance disturbance = -1
	daemonDies     disturbance = 1 // again and again
	daemonPauses   disturbance = 2
	agentReplaced  disturbance = 6  // with other settings
	daemonDiesLate disturbance = 22 // shortly before the reset
)

// NewFencePlan makes a story: nodes are cut off, alone or together, while daemons, halves, leaders and supervisors die, stop and are
// replaced, and digests are delayed. One story in four has a plain cut, whose node must be fenced in time.
func NewFencePlan(seed uint64) Plan { return newFencePlan(seed, anyDisturbance) }

// newFencePlan makes such a story, or one of a cut with one kind of disturbance.
func newFencePlan(seed uint64, only disturbance) Plan {
	a := &author{rnd: rand.New(rand.NewPCG(seed, 9)), times: 1, honest: true}
	a.dims = a.shape(fencingShapes)
	a.supervisors, a.interfaces = []int{3, 3, 5}[a.rnd.IntN(3)], 1+a.rnd.IntN(2)
	f := &FencePlan{Fences: Fences{Drift: maxDrift, Reboot: 30 * time.Second}, Margin: 30 * time.Second}
	f.Timeout = time.Duration([]int{4, 8, 15, 30, 60}[a.rnd.IntN(5)]) * time.Second
	f.ContactWithin = time.Duration(5+a.rnd.IntN(20)) * time.Second
	f.Executor = []response.Kind{response.WebhookNotify, response.KubernetesTaint, response.WebhookRemediate}[a.rnd.IntN(3)]
	if only != anyDisturbance {
		f.Timeout = 60 * time.Second // longer than the margin
	}
	p := Plan{Dims: a.dims, Preset: config.PresetDefault, Interfaces: a.interfaces, Supervisors: a.supervisors, Seed: seed, Fences: f}
	if a.rnd.IntN(2) == 0 && only == anyDisturbance {
		p.Preset = config.PresetRelaxed
	}
	g := &fencer{author: a, FencePlan: f, n: a.node(), only: only}
	g.pass(4*time.Second, 8*time.Second) // devices are armed
	switch {
	case only != anyDisturbance:
		g.do("isolate %s all", g.n)
		if only == daemonDiesLate {
			reset := g.ContactWithin + g.Timeout
			g.pass(reset-g.Timeout/4, reset)
		} else {
			g.pass(0, g.ContactWithin)
		}
		g.disturb()
		g.pass(g.downAfter(), g.downAfter()+20*time.Second)
	case a.rnd.IntN(4) == 0:
		g.plain()
	default:
		g.synchronous = a.rnd.IntN(2) == 0
		for range 1 + a.rnd.IntN(2) {
			g.round()
		}
	}
	p.Acts, p.Synchronous = g.acts, g.synchronous
	return p
}

// fenceOutcome is the outcome of a story.
type fenceOutcome struct {
	fenced []fenced
	resets int           // by devices
	lasted time.Duration // virtual time
}

// runFences plays such a story. It ends without a repair: the other stories have that.
func (p Plan) runFences() (out fenceOutcome, err error) {
	w, r, err := p.begin()
	if err != nil {
		return out, err
	}
	err = r.play(slices.Concat([]string{"settle"}, p.Acts))
	return fenceOutcome{w.fenced, w.resets, w.now.Sub(began)}, err
}

// plain reports whether the story is a plain cut, alone without a change of the leader either.
func (p Plan) plain() (is, alone bool) {
	is = len(p.Acts) > 1 && strings.HasPrefix(p.Acts[len(p.Acts)-1], "fenced ")
	return is, is && strings.HasPrefix(p.Acts[len(p.Acts)-2], "isolate ")
}

func (g *fencer) do(format string, args ...any) { g.acts = append(g.acts, lines(format, args...)...) }

func (g *fencer) everySupervisor() string {
	var out []string
	for i := range g.supervisors {
		out = append(out, fmt.Sprint("s", i))
	}
	return strings.Join(out, " ")
}

// pass lets time pass.
func (g *fencer) pass(lo, hi time.Duration) {
	g.do("run %s", lo+time.Duration(g.rnd.Int64N(int64(hi-lo)+1)).Round(time.Millisecond))
}

// downAfter is the time from the end of all contact after which the node is down for certain.
func (p *FencePlan) downAfter() time.Duration { return p.ContactWithin + 2*p.Timeout + p.Margin }

// fenceSlack is the time beside downAfter in which a plainly cut-off node is fenced: to its verdict, to the end of a new leader's
// grace, and for a witness that has to answer again.
const fenceSlack = 30 * time.Second

// plain cuts one node off, with no other fault but a change of the leader.
func (g *fencer) plain() {
	g.synchronous = true // a new leader whose clock is behind may wait for a cooldown's end
	g.do("isolate %s %s", g.n, []string{"all", "all", "out", "supervisors"}[g.rnd.IntN(4)])
	if g.rnd.IntN(2) == 0 {
		g.pass(0, g.downAfter())
		g.do("kill-supervisor leader\nrun %s\nstart-supervisor %s", g.ms(100, 4000), g.everySupervisor())
	}
	g.do("fenced %s %s", g.n, g.downAfter()+fenceSlack)
}

// round cuts a node off for a time that is close to a limit, or longer, and has faults before, meanwhile and afterwards.
func (g *fencer) round() {
	if g.rnd.IntN(3) == 0 {
		g.disturb()
		g.pass(0, 3*time.Second)
	}
	g.cut()
	limit := []time.Duration{g.ContactWithin, g.ContactWithin + g.Timeout, g.downAfter(), g.downAfter(),
		g.downAfter() + 20*time.Second}[g.rnd.IntN(5)]
	parts := 1 + g.rnd.IntN(4)
	for i := range parts {
		part := limit / time.Duration(parts)
		g.pass(part/2, part+part/4)
		if i < parts-1 {
			g.disturb()
		}
	}
	if g.rnd.IntN(3) > 0 {
		g.do("rejoin %s", g.n)
		g.pass(0, 15*time.Second)
	}
	switch g.rnd.IntN(3) {
	case 0:
		all := g.everySupervisor()
		g.do("rejoin all\njoin-supervisors\ncontinue %s node\nstart-agent %s\nstart-supervisor %s\ncontinue-supervisor %s", g.n, g.n, all, all)
		g.pass(3*time.Second, 20*time.Second)
		g.n = g.node()
	case 1:
		g.pass(0, 20*time.Second)
	}
}

// cut cuts the node off: alone in some way, or with others.
func (g *fencer) cut() {
	switch g.rnd.IntN(12) {
	case 0, 1, 2, 3:
		g.do("isolate %s all", g.n)
	case 4:
		g.do("isolate %s in", g.n)
	case 5:
		g.do("isolate %s out", g.n)
	case 6, 7:
		g.do("isolate %s supervisors", g.n)
	case 8:
		g.do("isolate %s but-link", g.n)
	case 9: // it keeps a supervisor, which is cut off from the others
		g.do("isolate %s with s%d", g.n, g.rnd.IntN(g.supervisors))
	case 10: // a rack that is cut off together: gossip works in it
		near := g.dims.Neighbours(g.n)
		g.do("isolate-group %s %s", g.n, near[g.rnd.IntN(len(near))])
	case 11:
		g.do("isolate-group %s %s", g.n, g.node())
	}
}

// neighbour returns a random neighbour of the node that is cut off.
func (g *fencer) neighbour() grid.Coord {
	near := g.dims.Neighbours(g.n)
	return near[g.rnd.IntN(len(near))]
}

// disturb is a fault beside the cut, most of them on the node that is cut off. It is long because it lists all kinds.
func (g *fencer) disturb() {
	n, by := g.n, g.neighbour()
	upTo := func(d time.Duration) time.Duration {
		return time.Duration(g.rnd.Int64N(int64(d))).Round(time.Millisecond)
	}
	kind := disturbance(g.rnd.IntN(22))
	if g.only != anyDisturbance {
		kind = g.only
	}
	switch kind {
	case 0:
		g.do("daemon %s kill\nrun %s\ndaemon %s start", n, upTo(g.Timeout), n)
	case daemonDies:
		for range 4 {
			g.do("daemon %s kill\nrun %s\ndaemon %s start\nrun %s", n, upTo(2*time.Second), n, upTo(g.ContactWithin))
		}
	case daemonDiesLate:
		g.do("daemon %s kill", n)
	case daemonPauses, 3:
		pause := upTo(g.Timeout + g.Timeout/4)
		if g.only == kind { // until shortly before the reset
			pause = g.Timeout - upTo(g.Timeout/4)
		}
		g.do("daemon %s stop\nrun %s\ndaemon %s continue", n, pause, n)
	case 4:
		g.do("stop-agent %s", n)
	case 5:
		g.do("stop-agent %s\nrun %s\nstart-agent %s", n, upTo(g.Timeout+4*time.Second), n)
	case agentReplaced:
		g.do("stop-agent %s\nrun %s\nstart-agent %s %s %s", n, upTo(g.Timeout), n, 60*time.Second, 10*time.Minute)
	case 7: // without a watchdog, in contact, and then cut off
		g.do("rejoin %s\nrun %s\nstop-agent %s\nrun %s\nstart-agent %s off\nrun %s", n, upTo(10*time.Second), n,
			upTo(3*time.Second), n, g.ms(100, 8000))
		g.cut()
	case 8: // a boot, in contact, and then cut off
		g.do("rejoin %s\npower %s %s\nrun %s", n, n, upTo(5*time.Second), g.ms(100, 9000))
		g.cut()
	case 9:
		g.do("kill %s %s\nrun %s\nstart %s node", n, g.half(), upTo(5*time.Second), n)
	case 10:
		g.do("hang %s %s\nrun %s\ncontinue %s node", n, g.half(), upTo(8*time.Second), n)
	case 11, 12: // contact for a moment
		g.do("rejoin %s\nrun %s", n, upTo(3*time.Second))
		g.cut()
	case 13:
		d := g.direction(n)
		g.do("flap %s %s %s\nrun %s\nunflap %s %s\ncut %s %s", n, d, g.ms(200, 4000), upTo(10*time.Second), n, d, n, d)
	case 14: // a neighbour dies, or cannot report
		g.do("%s", []string{fmt.Sprintf("kill %s node\nrun %s\nstart %s node", by, upTo(5*time.Second), by),
			fmt.Sprintf("kill %s host\nrun %s\nstart %s host", by, upTo(5*time.Second), by),
			fmt.Sprintf("cut-service %s\nrun %s\nmend-service %s", by, upTo(10*time.Second), by)}[g.rnd.IntN(3)])
	case 15: // a neighbour is cut off and joins the node
		g.do("isolate %s all\nrun %s\nrejoin %s", by, upTo(20*time.Second), by)
		g.cut()
	case 16, 17:
		g.do("%s", strings.Join(g.ofSupervisor(), "\n"))
	case 18:
		g.do("%s", strings.Join(g.ofStore(), "\n"))
	case 19:
		g.do("delay-service %s %s\nrun %s\nrejoin %s\nrun %s\nstop-agent %s\nrun %s\nstart-agent %s\ndelay-service %s 0s", n, upTo(8*time.Second),
			g.ms(10, 3000), n, g.ms(10, 8000), n, g.ms(10, 3000), n, n)
		g.cut()
	case 20:
		g.do("delay-service %s %s\nrejoin %s\nrun %s", n, upTo(20*time.Second), n, g.ms(10, 8000))
		g.cut()
	default:
		g.do("power %s %s", n, upTo(30*time.Second))
	}
}

// fenceCommand carries out the commands of these stories. done is false for any other.
func (r *runner) fenceCommand(a []string) (done bool, err error) {
	if r.cfg.Fences == nil {
		return false, nil
	}
	switch a[0] {
	case "isolate-group":
		return true, r.isolateGroup(a[1:])
	case "rejoin":
		if at(a, 1) == "all" {
			for _, n := range r.nodes {
				r.rejoin(n)
			}
			return true, nil
		}
		return true, r.eachNode(a[1:], r.rejoin)
	case "isolate", "daemon", "power", "stop-agent", "start-agent", "delay-service", "fenced":
	default:
		return false, nil
	}
	n, err := r.node(at(a, 1))
	if err != nil {
		return true, err
	}
	m := n.machine
	var d time.Duration
	switch a[0] {
	case "isolate":
		return true, r.isolate(n, a[2:])
	case "daemon":
		switch at(a, 2) {
		case "kill":
			m.killDaemon()
			m.announce = nil
		case "stop":
			m.daemon.stop()
		case "continue":
			m.daemon.resume()
		default:
			m.startDaemon()
		}
	case "power":
		if d, err = time.ParseDuration(at(a, 2)); err == nil {
			m.down(d)
		}
	case "stop-agent":
		m.stopAgent()
	case "start-agent":
		return true, m.restartAgent(a[2:])
	case "delay-service":
		n.service.delay, err = time.ParseDuration(at(a, 2))
	case "fenced":
		if d, err = time.ParseDuration(at(a, 2)); err != nil {
			return true, err
		}
		if m.cutAt.IsZero() {
			return true, errors.New("it was never cut off")
		}
		known := len(r.fenced)
		if !r.RunUntil(d, func() bool {
			return slices.ContainsFunc(r.fenced[known:], func(f fenced) bool { return f.node == n.id() })
		}) &&
			len(r.broken) == 0 {
			return true, fmt.Errorf("cut off for %s, and no step that rests on its fencing has begun: %s", r.now.Sub(m.cutAt), r.whyNotFenced(n))
		}
	}
	return true, err
}

// restartAgent starts a stopped agent, with other settings if some are given.
func (m *computer) restartAgent(a []string) error {
	settings := m.settings
	switch {
	case at(a, 0) == "off":
		settings.Timeout = 0
	case len(a) == 2:
		var err error
		if settings.Timeout, err = time.ParseDuration(a[0]); err != nil {
			return err
		}
		if settings.ContactWithin, err = time.ParseDuration(a[1]); err != nil {
			return err
		}
	default:
		settings = *m.n.w.cfg.Fences
	}
	if m.on && !m.daemon.running {
		m.settings = settings
		m.startAgent()
	}
	return nil
}

// isolate cuts a node off.
func (r *runner) isolate(n *node, a []string) error {
	r.rejoin(n)
	n.machine.cutAt = r.now
	links := n.topo.Links
	switch at(a, 0) {
	case "all":
		r.setService(n, true)
	case "in":
		n.service.deaf = true
	case "out":
		n.service.mute = true
	case "supervisors": // gossip works
		r.setSeen(n, func(*replica) bool { return false })
	case "but-link":
		r.setService(n, true)
		links = links[1:]
	case "with":
		s, err := r.supervisor(at(a, 1))
		if err != nil {
			return err
		}
		r.setSeen(n, func(o *replica) bool { return o == s })
		for i := range r.store.group {
			r.store.group[i] = count(i == s.index)
		}
		r.store.look()
	default:
		return fmt.Errorf("isolate: given %q: want all, in, out, supervisors, but-link or with", strings.Join(a, " "))
	}
	for _, d := range links {
		n.links[d.Index()].cut = at(a, 0) != "in"
		n.neighbour(d).links[d.Opposite().Index()].cut = at(a, 0) != "out"
	}
	return nil
}

// isolateGroup cuts nodes off together: their links to each other and their gossip work.
func (r *runner) isolateGroup(names []string) error {
	group := map[*node]bool{}
	if err := r.eachNode(names, func(n *node) { group[n] = true }); err != nil {
		return err
	}
	for _, n := range r.nodes {
		if !group[n] {
			continue
		}
		r.rejoin(n)
		n.machine.cutAt = r.now
		r.setSeen(n, func(*replica) bool { return false })
		for _, d := range n.topo.Links {
			if peer := n.neighbour(d); !group[peer] {
				n.links[d.Index()].cut, peer.links[d.Opposite().Index()].cut = true, true
			}
		}
	}
	return nil
}

// rejoin ends all that cuts a node off.
func (r *runner) rejoin(n *node) {
	r.setService(n, false)
	n.service.deaf, n.service.mute = false, false
	r.setSeen(n, func(*replica) bool { return true })
	for _, d := range n.topo.Links {
		n.flaps[d.Index()]++
		n.links[d.Index()].cut, n.neighbour(d).links[d.Opposite().Index()].cut = false, false
	}
}

func (r *runner) setService(n *node, cut bool) {
	for k := range n.service.cut {
		n.service.cut[k] = cut
	}
}

// setSeen sets which supervisors a node reaches.
func (r *runner) setSeen(n *node, sees func(*replica) bool) {
	for _, s := range r.replicas {
		if sees(s) {
			delete(s.unseen, n)
		} else {
			s.unseen[n] = true
		}
	}
}

// whyNotFenced describes the responses to a node's faults.
func (r *runner) whyNotFenced(n *node) string {
	l := r.leading()
	if l == nil || l.answers == nil {
		return "no supervisor leads"
	}
	var out []string
	for _, resp := range l.answers.engine.Responses() {
		if resp.Target.Node == n.id() {
			s := resp.Steps[min(resp.Step, len(resp.Steps)-1)]
			out = append(out, fmt.Sprintf("%s is %s, step %s: %s %s", resp.Target, resp.State, s.Name, resp.Detail, s.Detail))
		}
	}
	return strings.Join(out, "; ") + fmt.Sprintf("; node %s, stated %+v", r.store.picture(n.id()).state[0], l.term.stated[n.id()])
}
