package sim

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Script is a scenario that a person can read. One command a line, # begins a comment:
//
//	torus 2x2x2 3x3x3            run the whole on each of these tori, from a cold start
//	preset fast                  of the periods; default without it
//	interfaces 2                 of every node on the service network; 1 without it
//	settle                       run until every node is NORMAL, and a second or so more; begin
//	run 3s                       let time pass
//	kill|hang|continue|start NODE host|dnp|node
//	cut-service|mend-service NODE [INTERFACE]     all of its interfaces, or one by its number
//	cut-supervisor|mend-supervisor                nobody reaches it; the rest of the service network lives
//	lose-service|corrupt-service NODE RATE        of its datagrams, both ways; rate 0 ends it
//	cut|mend NODE DIR [out]      both directions of a cable, or only what NODE sends
//	corrupt|lose NODE DIR RATE   what NODE sends in direction DIR; rate 0 ends it
//	sensor NODE COMPONENT STATE  what a sensor shows
//	exception NODE ADDRESS BITS  the DNP half meets a condition of Table VI, as 0x240 0x1
//	begin                        expectations below look at changes from here on
//	expect NODE COMPONENT STATE [cause C] [path P] [within half|node|single|DURATION]
//	never NODE COMPONENT STATE   no such change since begin
//	spared NODE...               since begin no node but these has left NORMAL
//	delivered NODE [DURATION]    everything that NODE's halves have logged reaches the supervisor by then
//	map NODE COMPONENT STATE [cause C]   what the map says now
type Script struct {
	Tori   []grid.Dims
	Preset string
	// Interfaces of every node.
	Interfaces int
	steps      []step
}

type step struct {
	line int
	text string
	args []string
}

// ParseScript reads a scenario.
func ParseScript(r io.Reader) (*Script, error) {
	s := &Script{Preset: config.PresetDefault, Interfaces: 1}
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
	w, err := New(Config{Dims: d, Periods: p, Seed: seed, Interfaces: s.Interfaces})
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
		if !r.RunUntil(30*time.Second, r.allNormal) {
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
	case "cut-supervisor", "mend-supervisor":
		r.begun = r.now
		r.supervisorCut = a[0] == "cut-supervisor"
		return nil
	}
	n, err := r.node(at(a, 1))
	if err != nil {
		return err
	}
	switch a[0] {
	case "expect":
		return r.expect(n, a[2:])
	case "never":
		return r.never(n, a[2:])
	case "map":
		return r.shows(n, a[2:])
	case "delivered":
		return r.delivered(n, at(a, 2))
	}
	r.begun = r.now
	return r.harm(n, a)
}

func (r *runner) begin() { r.mark, r.begun = len(r.known), r.now }

// harm injects a fault or ends one.
func (r *runner) harm(n *node, a []string) error {
	switch a[0] {
	case "kill", "hang", "continue", "start":
		return r.signal(n, a[0], at(a, 2))
	case "cut-service", "mend-service":
		return r.cutService(n, a)
	case "lose-service", "corrupt-service":
		rate, err := strconv.ParseFloat(at(a, 2), 64)
		if a[0] == "lose-service" {
			n.service.lose = rate
		} else {
			n.service.corrupt = rate
		}
		return err
	case "sensor":
		c, err := fault.ParseComponent(at(a, 2))
		if err != nil {
			return err
		}
		s, err := fault.ParseState(at(a, 3))
		if err != nil {
			return err
		}
		if _, ok := n.sensors[c]; !ok {
			return fmt.Errorf("no sensor measures %s", c)
		}
		n.sensors[c] = reading{s, 20}
		return nil
	case "exception":
		return r.exception(n, a)
	case "cut", "mend", "corrupt", "lose":
		return r.cable(n, a)
	}
	return fmt.Errorf("unknown command %q", a[0])
}

func (r *runner) cutService(n *node, a []string) error {
	cut := a[0] == "cut-service"
	if len(a) < 3 {
		for k := range n.service.cut {
			n.service.cut[k] = cut
		}
		return nil
	}
	k, err := strconv.Atoi(a[2])
	if err != nil || k < 0 || k >= len(n.service.cut) {
		return fmt.Errorf("interface %q: want 0 to %d", a[2], len(n.service.cut)-1)
	}
	n.service.cut[k] = cut
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
	if !r.RunUntil(limit, func() bool { return r.deliveries.of(n.id()) == 0 }) {
		return fmt.Errorf("%d reports have not arrived within %s", r.deliveries.of(n.id()), limit)
	}
	return nil
}

func (r *runner) signal(n *node, what, whom string) error {
	halves := []fault.Half{fault.HalfDNP, fault.HalfHost}
	if whom != "node" {
		h, err := fault.ParseHalf(whom)
		if err != nil {
			return err
		}
		halves = []fault.Half{h}
	}
	for _, h := range halves {
		switch p := n.process(h); what {
		case "kill":
			p.kill()
		case "hang":
			p.stop()
		case "continue":
			p.resume()
		default:
			n.start(h)
		}
	}
	return nil
}

func (r *runner) exception(n *node, a []string) error {
	register, err := strconv.ParseUint(at(a, 2), 0, 32)
	if err != nil {
		return err
	}
	bits, err := strconv.ParseUint(at(a, 3), 0, 32)
	if err != nil {
		return err
	}
	n.dnp.deliver(0, func() { n.stepDNP(dnpcore.Exception{Register: watchdog.Addr(register), Bits: uint32(bits)}) })
	return nil
}

func (r *runner) cable(n *node, a []string) error {
	d, err := grid.ParseDirection(at(a, 2))
	if err != nil {
		return err
	}
	if !r.cfg.Dims.HasLink(d) {
		return fmt.Errorf("a %s torus has no links in direction %s", r.cfg.Dims, d)
	}
	out, back := &n.links[d.Index()], &n.neighbour(d).links[d.Opposite().Index()]
	switch a[0] {
	case "cut", "mend":
		out.cut = a[0] == "cut"
		if at(a, 3) != "out" {
			back.cut = out.cut
		}
		return nil
	}
	rate, err := strconv.ParseFloat(at(a, 3), 64)
	if err != nil {
		return err
	}
	if a[0] == "corrupt" {
		out.corrupt = rate
	} else {
		out.lose = rate
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
		return nil, err
	}
	return r.nodes[r.cfg.Dims.Rank(c)], nil
}

// wanted is what an expectation asks of a change.
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
	return k.Node == n.id() && k.Component == w.component && k.To == w.state && (w.cause == 0 || k.Cause == w.cause) && (w.path == 0 || k.Path == w.path)
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
	if left := r.begun.Add(w.within).Sub(r.now); !r.RunUntil(max(left, 0), seen) && !seen() {
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
	s, _ := r.supervisor.machine.Node(n.id())
	state, cause := s.State, s.Cause
	for _, c := range s.Components {
		if c.Component == w.component {
			state, cause = c.State, c.Cause
		}
	}
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

func (r *runner) allNormal() bool { return r.supervisor.normal == len(r.nodes) }

func (r *runner) notNormal() string {
	var out []string
	for _, n := range r.Nodes() {
		if n.State == fault.Normal {
			continue
		}
		var s strings.Builder
		fmt.Fprintf(&s, "%s is %s (%s)", n.ID, n.State, n.Cause)
		for _, c := range n.Components {
			if c.State != fault.Normal {
				fmt.Fprintf(&s, " %s %s", c.Component, c.State)
			}
		}
		out = append(out, s.String())
	}
	return strings.Join(out, "; ")
}
