package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// mends are the commands that improve the state; all others make it worse.
var mends = []string{
	"continue", "start", "mend-service", "mend-supervisor", "mend", "continue-supervisor", "start-supervisor",
	"join-supervisors", "supervisor-mend", "honest", "unflap", "mend-cables", "rejoin", "start-agent",
}

// system carries out the commands that are about no single node. done is false for any other.
func (r *runner) system(a []string) (done bool, err error) {
	if done, err := r.fenceCommand(a); done {
		return true, err
	}
	switch a[0] {
	case "cut-supervisor", "mend-supervisor":
		r.supervisorCut = a[0] == "cut-supervisor"
	case "kill-supervisor", "crash-supervisor", "stop-supervisor", "continue-supervisor", "start-supervisor", "future-supervisor":
		return true, r.eachSupervisor(a[1:], func(s *replica) { signalSupervisor(s, a[0]) })
	case "end-term": // of whoever leads
		if c := r.store.leader(); c != nil {
			r.store.resign(c.rev)
		}
	case "restart":
		if at(a, 1) != "all" || at(a, 2) != "supervisors" {
			return true, fmt.Errorf(`restart: given %q: want "all supervisors"`, strings.Join(a[1:], " "))
		}
		r.restartSupervisors()
	case "part-supervisors":
		return true, r.partSupervisors(a[1:])
	case "join-supervisors":
		clear(r.store.group)
		r.store.look()
	case "supervisor-cut", "supervisor-mend":
		return true, r.blind(a)
	case "store":
		return true, r.setStore(a[1:])
	case "cold-start":
		return true, r.coldStart(at(a, 1))
	case "kill-fraction":
		return true, r.killFraction(at(a, 1))
	case "join", "leave", "move", "return":
		return true, r.move(a)
	case "mend-cables":
		r.mendCables()
	default:
		return false, nil
	}
	return true, nil
}

// move has a node join, leave, leave and return, or move to another place.
func (r *runner) move(a []string) error {
	c, err := grid.ParseCoord(at(a, 1))
	if err != nil {
		return err
	}
	if a[0] == "move" {
		to, err := grid.ParseCoord(at(a, 2))
		if err != nil {
			return err
		}
		return r.requestMove(move{at: to, from: &c})
	}
	if a[0] == "return" {
		returns, err := time.ParseDuration(at(a, 2))
		if err != nil {
			return err
		}
		return r.requestMove(move{at: c, leave: true, returns: returns})
	}
	m := move{at: c, leave: a[0] == "leave", back: at(a, 3) == "back"}
	if m.wait = -1; !m.leave && at(a, 2) != "never" {
		if m.wait, err = time.ParseDuration(at(a, 2)); err != nil {
			return err
		}
	}
	return r.requestMove(m)
}

// mendCables ends the faults of all cables: in a changed torus a fault may be at an end that leads nowhere.
func (r *runner) mendCables() {
	if r.moves == nil {
		return
	}
	for _, n := range r.nodes {
		for i := range n.links {
			n.flaps[i]++
			n.links[i].cut, n.links[i].lose, n.links[i].corrupt = false, 0, 0
		}
	}
}

func signalSupervisor(s *replica, what string) {
	switch what {
	case "kill-supervisor":
		s.kill()
	case "crash-supervisor":
		s.crash()
	case "stop-supervisor":
		s.stop()
	case "continue-supervisor":
		s.resume()
	case "start-supervisor":
		s.start()
	default:
		s.future = true
	}
}

// supervisor returns one by its short name, s0, or "leader".
func (r *runner) supervisor(name string) (*replica, error) {
	if name == "leader" {
		if l := r.leading(); l != nil {
			return l, nil
		}
		return r.replicas[0], nil
	}
	i, err := strconv.Atoi(strings.TrimPrefix(name, "s"))
	if err != nil || !strings.HasPrefix(name, "s") || i < 0 || i >= len(r.replicas) {
		return nil, fmt.Errorf("supervisor %q: want s0 to s%d, or leader", name, len(r.replicas)-1)
	}
	return r.replicas[i], nil
}

func (r *runner) eachSupervisor(names []string, do func(*replica)) error {
	if len(names) == 0 {
		return fmt.Errorf("supervisors: none given: want s0 to s%d, or leader", len(r.replicas)-1)
	}
	for _, name := range names {
		s, err := r.supervisor(name)
		if err != nil {
			return err
		}
		do(s)
	}
	return nil
}

// restartSupervisors has all of them die at once, and come back one after the other.
func (r *runner) restartSupervisors() {
	for _, s := range r.replicas {
		s.kill()
	}
	for _, s := range r.replicas {
		r.after(100*time.Millisecond+r.between(0, time.Second), s.start)
	}
}

// partSupervisors cuts the network between the supervisors into the parts that | divides.
func (r *runner) partSupervisors(names []string) error {
	group := make([]int, len(r.replicas))
	part := 1
	for _, name := range names {
		if name == "|" {
			part++
			continue
		}
		s, err := r.supervisor(name)
		if err != nil {
			return err
		}
		group[s.index] = part
	}
	r.store.group = group
	r.store.look()
	return nil
}

// blind cuts a supervisor off from nodes, both ways, or ends that.
func (r *runner) blind(a []string) error {
	s, err := r.supervisor(at(a, 1))
	if err != nil {
		return err
	}
	if a[0] == "supervisor-mend" {
		clear(s.unseen)
		return nil
	}
	if at(a, 2) != "from" || len(a) < 4 {
		return fmt.Errorf("supervisor-cut: given %q: want a supervisor, from, and nodes or all", strings.Join(a[1:], " "))
	}
	if a[3] == "all" {
		for _, n := range r.nodes {
			s.unseen[n] = true
		}
		return nil
	}
	return r.eachNode(a[3:], func(n *node) { s.unseen[n] = true })
}

func (r *runner) eachNode(names []string, do func(*node)) error {
	for _, name := range names {
		n, err := r.node(name)
		if err != nil {
			return err
		}
		do(n)
	}
	return nil
}

func (r *runner) setStore(a []string) error {
	// Requests from a slow time keep their delay.
	if until := r.now.Add(3*r.store.slow + attemptTime); (r.store.slow > 0 || r.store.full) && until.After(r.store.lame) {
		r.store.lame = until
	}
	r.store.slow, r.store.full = 0, false
	switch at(a, 0) {
	case "ok":
	case "full":
		r.store.full = true
	case "slow":
		d, err := time.ParseDuration(at(a, 1))
		if err != nil {
			return err
		}
		r.store.slow = d
	default:
		return fmt.Errorf(`store: given %q: want "ok", "full" or "slow" and a time`, strings.Join(a, " "))
	}
	return nil
}

// coldStart kills everything, and starts it again within a time; only data on disk survives.
func (r *runner) coldStart(within string) error {
	d, err := time.ParseDuration(within)
	if err != nil {
		return err
	}
	for _, n := range r.nodes {
		n.host.kill()
		n.dnp.kill()
		n.host.cold, n.dnp.cold = true, true
	}
	for _, s := range r.replicas {
		s.kill()
	}
	r.Run(time.Second)
	for _, s := range r.replicas {
		r.after(r.between(0, d), s.start)
	}
	r.startNodes(d)
	r.happens(false)
	return nil
}

// killFraction has a part of all nodes die at one moment.
func (r *runner) killFraction(share string) error {
	f, err := strconv.ParseFloat(share, 64)
	if err != nil || f <= 0 || f > 1 {
		return fmt.Errorf("kill-fraction: given %q: want a share, above 0 and at most 1", share)
	}
	dead := r.rnd.Perm(len(r.nodes))[:max(1, int(f*float64(len(r.nodes))))]
	slices.Sort(dead)
	for _, i := range dead {
		if err := r.signal(r.nodes[i], "kill", "node"); err != nil {
			return err
		}
	}
	return nil
}

// restartAs restarts one half or both.
func (n *node) restartAs(a []string) error {
	switch a[0] {
	case "recover":
		return within(at(a, 2), n.recover)
	case "recover-host":
		return within(at(a, 2), n.recoverHost)
	case "restart-half":
		h, err := fault.ParseHalf(at(a, 2))
		if err != nil {
			return err
		}
		return within(at(a, 3), func(d time.Duration) { n.restartHalf(h, d) })
	}
	host, err := time.ParseDuration(at(a, 2))
	if err != nil {
		return err
	}
	return within(at(a, 3), func(dnp time.Duration) { n.takeOver(host, dnp) })
}

// within calls do with a duration.
func within(text string, do func(time.Duration)) error {
	d, err := time.ParseDuration(text)
	if err == nil {
		do(d)
	}
	return err
}

// harm injects a fault into a node or ends one.
func (r *runner) harm(n *node, a []string) error {
	switch a[0] {
	case "kill", "hang", "continue", "start":
		return r.signal(n, a[0], at(a, 2))
	case "stop-agent":
		n.stopAgent()
		return nil
	case "start-agent":
		n.startAgent()
		return nil
	case "restart-half", "take-over", "recover", "recover-host":
		return n.restartAs(a)
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
		return r.sensor(n, a)
	case "exception":
		return r.exception(n, a)
	case "cut", "mend", "corrupt", "lose":
		return r.cable(n, a)
	case "flap", "unflap":
		return r.flap(n, a)
	case "clock":
		d, err := time.ParseDuration(at(a, 2))
		n.host.wall += d
		n.dnp.wall += d
		return err
	case "liar", "honest", "future":
		return r.eachNode(a[1:], func(n *node) {
			switch {
			case a[0] == "future":
				n.future = true
			case a[0] == "liar" && !n.liar:
				n.liar = true
				n.replay()
			case a[0] == "honest" && n.liar:
				n.liar, n.lied = false, n.w.now
			}
		})
	}
	return fmt.Errorf("unknown command %q", a[0])
}

func (r *runner) sensor(n *node, a []string) error {
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
	if s == fault.Failed {
		r.oweSensor(n, c)
	}
	return nil
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
		p := n.process(h)
		lived := p.up()
		switch what {
		case "kill":
			p.kill()
		case "hang":
			p.stop()
		case "continue":
			p.resume()
		default:
			if n.stop != nil {
				n.startAgent()
			} else {
				n.start(h)
			}
		}
		if lived && !p.up() {
			r.oweProcess(n, h, r.alone && len(halves) == 1)
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

func (r *runner) direction(n *node, a []string) (grid.Direction, error) {
	d, err := grid.ParseDirection(at(a, 2))
	if err == nil && n.place != nil && !n.meets(d) {
		return d, errAbsent
	}
	if err == nil && !r.cfg.Dims.HasLink(d) {
		err = fmt.Errorf("a %s torus has no links in direction %s", r.cfg.Dims, d)
	}
	return d, err
}

func (r *runner) cable(n *node, a []string) error {
	d, err := r.direction(n, a)
	if err != nil {
		return err
	}
	peer, back := n.neighbour(d), d.Opposite()
	switch a[0] {
	case "cut", "mend":
		r.cutCable(n, d, a[0] == "cut")
		if at(a, 3) != "out" {
			r.cutCable(peer, back, a[0] == "cut")
		}
		return nil
	}
	rate, err := strconv.ParseFloat(at(a, 3), 64)
	if err != nil {
		return err
	}
	if a[0] == "corrupt" {
		n.links[d.Index()].corrupt = rate
	} else {
		n.links[d.Index()].lose = rate
	}
	return nil
}

func (r *runner) cutCable(n *node, d grid.Direction, cut bool) {
	c := &n.links[d.Index()]
	if cut && !c.cut {
		r.oweLink(n, d, r.alone)
	}
	c.cut = cut
}

// flap cuts a cable and mends it again, each half of the time, until unflap.
func (r *runner) flap(n *node, a []string) error {
	d, err := r.direction(n, a)
	if err != nil {
		return err
	}
	i := d.Index()
	n.flaps[i]++ // ends a flapping that is in progress
	if a[0] == "unflap" {
		r.setCable(n, d, false)
		return nil
	}
	every, err := time.ParseDuration(at(a, 3))
	if err != nil || every <= 0 {
		return fmt.Errorf("flap: given %q: want a time", at(a, 3))
	}
	turn := n.flaps[i]
	var toggle func(cut bool)
	toggle = func(cut bool) {
		if n.flaps[i] == turn {
			r.setCable(n, d, cut)
			r.happens(cut)
			r.after(every/2, func() { toggle(!cut) })
		}
	}
	toggle(true)
	return nil
}

func (r *runner) setCable(n *node, d grid.Direction, cut bool) {
	n.links[d.Index()].cut = cut
	if n.meets(d) {
		n.neighbour(d).links[d.Opposite().Index()].cut = cut
	}
}
