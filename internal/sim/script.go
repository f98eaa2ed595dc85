package sim

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Script is a scenario that a person can read. One command a line, # begins a comment:
//
//	torus 2x2x2 3x3x3            run the script on each of these tori, from a cold start
//	preset fast                  of the periods; default without it
//	interfaces 2                 of every node on the service network; 1 without it
//	supervisors 5                3 without it
//	synchronous                  the supervisors' wall clocks agree to a second
//	settle [30s]                 run until every node is NORMAL, and about a second more; begin
//	run 3s                       let time pass
//	kill|hang|continue|start NODE host|dnp|node
//	restart-half NODE host|dnp 2s                 the half restarts, as announced, and is back after that time
//	take-over NODE 12s 1s        both daemons are replaced, as announced; host half and DNP half are back after these times
//	recover NODE 60ms            its recovery daemon kills the DNP half, announces its return, and restarts it by then
//	recover-host NODE 2s         the same for the host half
//	cut-service|mend-service NODE [INTERFACE]     all of the node's interfaces, or one by its number
//	cut-supervisor|mend-supervisor                no node reaches a supervisor; the rest of the service network lives
//	lose-service|corrupt-service NODE RATE        share of its datagrams, both ways; rate 0 ends this
//	cut|mend NODE DIR [out]      both directions of a cable, or only frames that NODE sends
//	corrupt|lose NODE DIR RATE   frames that NODE sends in direction DIR; rate 0 ends this
//	sensor NODE COMPONENT STATE  set a sensor's state
//	exception NODE ADDRESS BITS  the DNP half meets a condition of Table VI, as 0x240 0x1
//	flap|unflap NODE DIR 20s     cut and mend both directions of a cable, half of the time each
//	clock NODE 1h                a step of its wall clock
//	liar|honest NODE...          they accuse all neighbours, replay others' messages, understate how long they held messages
//	future NODE...               they have a later version: unknown fields, components and kinds
//	kill-fraction 0.3            of all nodes, at once
//	cold-start 5s                everything dies, and restarts within that time
//
//	kill|stop|continue|start|future-supervisor s0|leader...
//	crash-supervisor s0|leader...                 its machine dies too, so no kernel refuses connections to it
//	restart all supervisors
//	part-supervisors s0 | s1 s2  cut the network between them; join-supervisors ends this
//	end-term                                      another supervisor ends the term of the one that leads, which may live
//	supervisor-cut s0|leader from NODE...|all     the nodes that it sees; supervisor-mend s0 ends this
//	store ok|full|slow 500ms
//
//	join PLACE TIME|never [back] a node joins, and its halves start after that time; back: one that has left, if any
//	leave PLACE
//	return PLACE TIME            a node leaves, and gets the same place again after that time
//	move FROM TO                 a node gets another place
//	mend-cables                  all faults of all cables end, if nodes join and leave
//
//	begin                        expectations below look at changes from here on
//	expect NODE COMPONENT STATE [cause C] [path P] [within half|node|single|DURATION]
//	never NODE COMPONENT STATE   no such change since begin
//	spared NODE...               since begin no node but these has left NORMAL
//	delivered NODE [DURATION]    everything that NODE's halves have logged is committed by then
//	leads [DURATION]             a replica leads by then, and has led for one digest period
//	headless                     no replica leads now
//	same                         every supervisor that runs has the same map
//	group KIND [DURATION]        a group fault of that kind, as PLANE, is active by then
//	no-groups [DURATION]         none is active by then
//	followed [DURATION]          by then all nodes hold the torus, and all its links are NORMAL, if nodes join and leave
//	revision                     no commit since begin
//	map NODE COMPONENT STATE [cause C]   the map's present state
type Script struct {
	Tori   []grid.Dims
	Preset string
	// Interfaces of every node.
	Interfaces  int
	Supervisors int
	// Synchronous: the supervisors' clocks agree.
	Synchronous bool
	steps       []step
}

type step struct {
	line int
	text string
	args []string
}

// maxSupervisors bounds the supervisors of a scenario.
const maxSupervisors = 7

// ParseScript reads a scenario.
func ParseScript(r io.Reader) (*Script, error) {
	s := &Script{Preset: config.PresetDefault, Interfaces: 1, Supervisors: 3}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		text, _, _ := strings.Cut(in.Text(), "#")
		f := strings.Fields(text)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "torus":
			for _, t := range f[1:] {
				d, err := grid.ParseDims(t)
				if err != nil {
					return nil, fmt.Errorf("line %d: %w", n, err)
				}
				s.Tori = append(s.Tori, d)
			}
		case "preset":
			if len(f) != 2 {
				return nil, fmt.Errorf("line %d: preset: want one name", n)
			}
			s.Preset = f[1]
		case "interfaces":
			var err error
			if s.Interfaces, err = strconv.Atoi(at(f, 1)); err != nil || s.Interfaces < 1 || s.Interfaces > servicenet.MaxInterfaces {
				return nil, fmt.Errorf("line %d: interfaces: want one number, 1 to %d", n, servicenet.MaxInterfaces)
			}
		case "supervisors":
			var err error
			if s.Supervisors, err = strconv.Atoi(at(f, 1)); err != nil || s.Supervisors < 1 || s.Supervisors > maxSupervisors {
				return nil, fmt.Errorf("line %d: supervisors: want one number, 1 to %d", n, maxSupervisors)
			}
		case "synchronous":
			s.Synchronous = true
		default:
			s.steps = append(s.steps, step{n, strings.TrimSpace(text), f})
		}
	}
	if len(s.Tori) == 0 || len(s.steps) == 0 {
		return nil, fmt.Errorf("scenario with %d tori and %d steps: want at least one of each", len(s.Tori), len(s.steps))
	}
	return s, in.Err()
}

// Run plays the scenario on one torus with one seed. The error names the line that did not hold.
func (s *Script) Run(d grid.Dims, seed uint64) error {
	p, err := config.Preset(s.Preset)
	if err != nil {
		return err
	}
	w, err := New(Config{Dims: d, Periods: p, Seed: seed, Interfaces: s.Interfaces, Supervisors: s.Supervisors,
		Synchronous: s.Synchronous})
	if err != nil {
		return err
	}
	r := runner{World: w, periods: p}
	for _, st := range s.steps {
		if err := r.do(st.args); err != nil {
			return fmt.Errorf("line %d, %q: %w%s", st.line, st.text, err, r.history())
		}
		if len(w.broken) > 0 {
			return fmt.Errorf("line %d, %q: invariant broken: %s%s", st.line, st.text, strings.Join(w.broken, "; "), r.history())
		}
	}
	return nil
}

type runner struct {
	*World
	periods config.Periods
	mark    int       // index into known
	begun   time.Time // of the last fault or begin
	markRev uint64    // of the store, then
	alone   bool      // the next fault meets a world without recent events
}

func (r *runner) history() string {
	var b strings.Builder
	for _, k := range r.known[r.mark:] {
		fmt.Fprintf(&b, "\n  +%s %s", k.At.Sub(r.begun).Round(time.Millisecond), k)
	}
	return b.String()
}

func (r *runner) do(a []string) error {
	switch a[0] {
	case "settle":
		limit, err := time.ParseDuration(cmp.Or(at(a, 1), "30s"))
		if err != nil {
			return err
		}
		if !r.RunUntil(limit, r.allNormal) && len(r.broken) == 0 {
			return fmt.Errorf("not every node is NORMAL: %s", r.notNormal())
		}
		// Past a new leader's grace, and on to a phase of all periods that the seed decides.
		r.Run(2*r.periods.DigestPeriod + r.between(0, r.periods.TRead))
		r.begin()
		return nil
	case "begin":
		r.begin()
		return nil
	case "run":
		d, err := time.ParseDuration(at(a, 1))
		if err != nil {
			return err
		}
		r.Run(d)
		return nil
	case "spared":
		return r.spared(a[1:])
	case "leads", "headless", "same", "revision", "no-groups", "group", "followed":
		return r.supervised(a)
	}
	if done, err := r.asks(a); done {
		return err
	}
	r.begun, r.alone = r.now, r.undisturbed()
	defer r.happens(!slices.Contains(mends, a[0]) && at(a, 1) != "ok" && a[len(a)-1] != "0")
	if done, err := r.system(a); done {
		return err
	}
	n, err := r.node(at(a, 1))
	if err != nil {
		return err
	}
	return r.harm(n, a)
}

// asks carries out the commands that only look at a node. done is false for any other.
func (r *runner) asks(a []string) (done bool, err error) {
	var look func(*node, []string) error
	switch a[0] {
	case "expect":
		look = r.expect
	case "never":
		look = r.never
	case "map":
		look = r.shows
	case "delivered":
		look = func(n *node, a []string) error { return r.delivered(n, at(a, 0)) }
	default:
		return false, nil
	}
	n, err := r.node(at(a, 1))
	if err != nil {
		return true, err
	}
	return true, look(n, a[2:])
}

func (r *runner) begin() { r.mark, r.begun, r.markRev = len(r.known), r.now, r.store.commits }

// supervised looks at the supervisors.
func (r *runner) supervised(a []string) error {
	switch a[0] {
	case "headless":
		if l := r.leading(); l != nil {
			return fmt.Errorf("%s leads", l.id)
		}
	case "leads":
		within, err := time.ParseDuration(cmp.Or(at(a, 1), "10s"))
		if err != nil {
			return err
		}
		leads := func() bool {
			l := r.leading()
			return l != nil && r.now.Sub(l.term.started) > r.periods.DigestPeriod
		}
		if !r.RunUntil(within, leads) {
			return fmt.Errorf("nobody does within %s", within)
		}
	case "no-groups", "group":
		return r.group(a)
	case "followed":
		within, err := time.ParseDuration(cmp.Or(at(a, 1), "40s"))
		if err == nil && !r.RunUntil(within, func() bool { return r.followed() == "" }) && len(r.broken) == 0 {
			err = errors.New(r.followed())
		}
		return err
	case "same":
		for _, s := range r.replicas {
			for _, n := range r.nodes {
				if s.up() && s.copied.picture(r.store, n.id()) != r.store.picture(n.id()) {
					return fmt.Errorf("%s has another map at revision %d of %d: %s", s.id, s.applied, r.store.rev(), n.id())
				}
			}
		}
	default:
		if n := r.store.commits - r.markRev; n > 0 {
			return fmt.Errorf("%d transactions were committed", n)
		}
	}
	return nil
}

func (r *runner) delivered(n *node, within string) error {
	limit := 20 * time.Second
	if within != "" {
		var err error
		if limit, err = time.ParseDuration(within); err != nil {
			return err
		}
	}
	if !r.RunUntil(limit, func() bool { return r.deliveries.of(n.id()) == 0 }) && len(r.broken) == 0 {
		return fmt.Errorf("%d reports have not arrived within %s", r.deliveries.of(n.id()), limit)
	}
	return nil
}

func at(a []string, i int) string {
	if i < len(a) {
		return a[i]
	}
	return ""
}

func (r *runner) node(name string) (*node, error) {
	c, err := grid.ParseCoord(name)
	if err != nil {
		return nil, err
	}
	if err := r.cfg.Dims.Check(c); err != nil {
		return nil, fmt.Errorf("%w: %w", errAbsent, err)
	}
	return r.nodes[r.cfg.Dims.Index(c)], nil
}

// wanted is the expected change.
type wanted struct {
	component fault.Component
	state     fault.State
	cause     fault.Cause // 0: any
	path      fault.Path  // 0: any
	within    time.Duration
}

func (r *runner) parseWanted(a []string) (w wanted, err error) {
	w.within = 20 * time.Second
	if w.component, err = fault.ParseComponent(at(a, 0)); err != nil {
		return w, err
	}
	if w.state, err = fault.ParseState(at(a, 1)); err != nil {
		return w, err
	}
	for i := 2; i+1 < len(a) && err == nil; i += 2 {
		switch a[i] {
		case "cause":
			w.cause, err = fault.ParseCause(a[i+1])
		case "path":
			w.path, err = fault.ParsePath(a[i+1])
		case "within":
			w.within, err = r.bound(a[i+1])
		default:
			err = fmt.Errorf("unknown condition %q", a[i])
		}
	}
	if len(a)%2 != 0 {
		err = fmt.Errorf("condition %q has no value", a[len(a)-1])
	}
	return w, err
}

func (r *runner) bound(s string) (time.Duration, error) {
	switch s {
	case "half":
		return r.periods.HalfBound(), nil
	case "node":
		return r.periods.NodeBound(), nil
	case "single":
		return r.periods.SingleBound(), nil
	}
	return time.ParseDuration(s)
}

func (w wanted) matches(n *node, k Known) bool {
	return k.Node == n.id() && k.Component == w.component && k.To == w.state && (w.cause == 0 || k.Cause == w.cause) &&
		(w.path == 0 || k.Path == w.path)
}

func (r *runner) expect(n *node, a []string) error {
	w, err := r.parseWanted(a)
	if err != nil {
		return err
	}
	looked, found := r.mark, false
	seen := func() bool {
		for ; looked < len(r.known) && !found; looked++ {
			k := r.known[looked]
			found = w.matches(n, k) && !k.At.After(r.begun.Add(w.within))
		}
		return found
	}
	if left := r.begun.Add(w.within).Sub(r.now); !r.RunUntil(max(left, 0), seen) && !seen() && len(r.broken) == 0 {
		return fmt.Errorf("not so within %s", w.within)
	}
	return nil
}

func (r *runner) never(n *node, a []string) error {
	w, err := r.parseWanted(a)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(r.known[r.mark:], func(k Known) bool { return w.matches(n, k) }) {
		return fmt.Errorf("it was so")
	}
	return nil
}

func (r *runner) shows(n *node, a []string) error {
	w, err := r.parseWanted(a)
	if err != nil {
		return err
	}
	p := r.store.picture(n.id())
	state, cause := p.state[w.component], p.cause[w.component]
	if state != w.state || w.cause != 0 && cause != w.cause {
		return fmt.Errorf("it is %s, cause %s", state, cause)
	}
	return nil
}

func (r *runner) spared(guilty []string) error {
	spare := map[fault.NodeID]bool{}
	for _, g := range guilty {
		n, err := r.node(g)
		if err != nil {
			return err
		}
		spare[n.id()] = true
	}
	for _, k := range r.known[r.mark:] {
		if k.Component == fault.ComponentNode && k.To != fault.Normal && !spare[k.Node] {
			return fmt.Errorf("a bystander was accused: %s", k)
		}
	}
	return nil
}

// group looks at the group faults that are committed.
func (r *runner) group(a []string) error {
	limit, so := at(a, 1), func() bool { return len(r.store.groups) == 0 }
	if a[0] == "group" {
		kind, err := awareness.ParseGroupKind(at(a, 1))
		if err != nil {
			return err
		}
		limit, so = at(a, 2), func() bool {
			for _, g := range r.store.groups {
				if g.GetKind() == lofamov1.GroupKind(kind) {
					return true
				}
			}
			return false
		}
	}
	within, err := time.ParseDuration(cmp.Or(limit, "10s"))
	if err != nil {
		return err
	}
	if !r.RunUntil(within, so) && len(r.broken) == 0 {
		return fmt.Errorf("%d group faults stand after %s: %v", len(r.store.groups), within, slices.Sorted(maps.Keys(r.store.groups)))
	}
	return nil
}

// allNormal reports whether every node is NORMAL, and every link: a bad link does not make its nodes SICK.
func (r *runner) allNormal() bool {
	dirs := grid.Directions()
	return r.store.normal == len(r.nodes) && !slices.ContainsFunc(r.nodes, func(n *node) bool {
		p := r.store.picture(n.id())
		return slices.ContainsFunc(dirs[:], func(d grid.Direction) bool {
			s := p.state[fault.Link(d)]
			return s != 0 && s != fault.Normal
		})
	})
}

func (r *runner) notNormal() string {
	var out []string
	for _, n := range r.nodes {
		p := r.store.picture(n.id())
		if p.state[fault.ComponentNode] == fault.Normal {
			continue
		}
		var s strings.Builder
		fmt.Fprintf(&s, "%s is %s (%s)", n.id(), p.state[fault.ComponentNode], p.cause[fault.ComponentNode])
		for c := fault.ComponentHost; c.Valid(); c++ {
			if p.state[c] != 0 && p.state[c] != fault.Normal {
				fmt.Fprintf(&s, " %s %s", c, p.state[c])
			}
		}
		out = append(out, s.String())
	}
	return strings.Join(out, "; ")
}
