package awareness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestScenarios runs testdata/*.txt. A file is a list of blocks: commands, a line "----", their
// output, an empty line. The commands:
//
//	torus DIMS [holdoff=D] [KEY=AXIS]...  a cluster of that shape, nothing started; nodes at the same place of the
//	                             axis (X, Y, Z) share a value of the failure domain KEY: rack=X gives rack=r0, rack=r1, ...
//	platform NAME                the platform that all halves state from now on: shared-kernel or dpu
//	start                        boot every half; runs past grace without printing
//	run D                        let time pass
//	kill NODE[/HALF]             the half runs no longer; without a half, both
//	boot NODE[/HALF]             it starts with a new boot epoch, everything in order, and sends a digest
//	resume NODE[/HALF]           it restarts from its copy, in its old epoch, and sends a digest
//	cont NODE[/HALF]             it goes on in its old epoch, as after SIGSTOP
//	mute, unmute NODE[/HALF]     challenges do not reach it, or do again
//	lose, find NODE[/HALF]       its reports do not arrive, or do again
//	via NODE/HALF PATH HELD      its reports take this rail, and so long
//	wait NODE[/HALF] D           its reports wait so long at a supervisor that cannot reach the leader
//	say NODE/HALF SUBJECT COMPONENT STATE KIND [AGE [ended]]   it states this from now on, and reports it at once;
//	                             ended: its kernel has confirmed the end of the process
//	die NODE|A..B                both halves of all nodes of the box die at once, and 80ms later the living
//	                             neighbours say so
//	silence NODE AGE             every living neighbour says that all its links to NODE are silent
//	silence NODE AGE by M        the neighbour M does
//	ended, hung                  from now on silences are those of processes whose kernel refuses frames; or are not
//	refuse, accept NODE          the kernel of the node refuses challenges that come straight; or does not
//	hear NODE [by M]             they hear it again
//	cut NODE DIRECTION           both ends say that they hear nothing on that link
//	cut-own NODE                 NODE alone says that it hears nothing on any link
//	gossip NODE                  memberlist believes it dead
//	relabel [KEY=AXIS]...        from now on these are the labels and the failure domains, as with torus
//	move DIMS                    from now on the torus has these places; the halves of new nodes do not run yet
//	follow NODE                  its links lead where the torus has them: each changed one begins cold, as UNKNOWN
//	up NODE                      its half, and those at the other ends, say that their links work
//	notice NODE/HALF host|dnp D  this half announces a restart of the half named, back within D; 0s ends it
//	stop NODE/HALF stop|shutdown|reboot|over   this half announces a stop of the node, or its end
//	replay NODE/HALF             every report it ever sent arrives again
//	takeover [ruleless]          another supervisor leads, with the committed map; with one whose rules it does not know
//	takeover after DURATION      another supervisor leads; the former one's clock was behind by that
//	measure NODE/HALF QUANTITY THRESHOLD EVERY VALUE...   it reads the values, so far apart, and sends each with a digest
//	map                          prints everything that is not NORMAL
//	nodes                        prints the nodes that are not NORMAL, without their components
//	groups                       prints the group faults that stand
//	explain NODE [COMPONENT]     explains its state
//	explain GROUP                explains a group fault that stands
//	brief, full                  of changes print only those of whole nodes and of groups; everything
//	evidence NODE COMPONENT      prints why
//	kernel NODE [booted=AGO] [panic=AGO,RECEIVER...]   prints whether the kernels of its FAILED halves are dead; the machine stated
//	                             another boot, or the receivers a panic, so long ago
//	links NODE                   prints its link ends that are not NORMAL
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		s := &scenario{}
		return golden.Blocks(t, text, "----", func(args []string) ([]string, error) {
			s.out = nil
			err := s.command(args)
			return s.out, err
		})
	})
}

type scenario struct {
	w     *world
	out   []string
	brief bool
}

func (s *scenario) printf(format string, args ...any) {
	s.out = append(s.out, fmt.Sprintf(format, args...))
}

func (s *scenario) command(f []string) error {
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	if f[0] == "torus" {
		return s.torus(f[1:])
	}
	w := s.w
	switch f[0] {
	case "platform":
		for _, p := range []fault.Platform{fault.PlatformSharedKernel, fault.PlatformDPU} {
			if p.String() == arg(1) {
				w.platform = p
				return nil
			}
		}
		return fmt.Errorf("platform %q", arg(1))
	case "start":
		w.start()
		return nil
	case "run":
		d, err := time.ParseDuration(arg(1))
		w.run(d)
		return err
	case "silence", "hear":
		return s.silence(f)
	case "say":
		return s.say(f[1:])
	case "measure":
		return s.measure(f[1:])
	case "notice":
		return s.notice(f[1:])
	case "stop":
		return s.stop(f[1:])
	case "die":
		return s.die(arg(1))
	case "cut":
		return s.cut(fault.NodeID(arg(1)), arg(2))
	case "cut-own":
		id := fault.NodeID(arg(1))
		for _, d := range w.dims.Links() {
			w.say(w.actor(id, fault.HalfHost), subject{id, fault.Link(d)}, fault.Failed, fault.KindSilence, time.Second)
		}
	case "ended", "hung":
		w.ended = f[0] == "ended"
	case "refuse", "accept":
		if w.refuses == nil {
			w.refuses = map[fault.NodeID]bool{}
		}
		w.refuses[fault.NodeID(arg(1))] = f[0] == "refuse"
	case "brief", "full":
		s.brief = f[0] == "brief"
	case "nodes":
		s.printNodes()
	case "groups":
		for _, g := range w.m.Groups() {
			s.printGroup("", g)
		}
	case "explain":
		if strings.Contains(arg(1), "/") {
			return s.explainGroup(arg(1))
		}
		return s.explain(fault.NodeID(arg(1)), arg(2))
	case "revoke": // no node: the list is empty
		list := Revoked{Nodes: map[fault.NodeID]time.Time{}}
		for _, id := range f[1:] {
			list.Nodes[fault.NodeID(id)] = w.now
		}
		w.step(list)
	case "gossip":
		w.step(GossipOpinion{Node: fault.NodeID(arg(1))})
	case "relabel":
		return s.relabel(f[1:])
	case "move", "follow", "up":
		return s.move(f)
	case "takeover":
		behind := time.Duration(0)
		if arg(1) == "after" {
			var err error
			if behind, err = time.ParseDuration(arg(2)); err != nil {
				return err
			}
		}
		return s.takeover(arg(1) == "ruleless", behind)
	case "map":
		s.printMap()
	case "kernel":
		return s.kernel(f[1:])
	case "links":
		s.printLinks(fault.NodeID(arg(1)))
	case "evidence":
		return s.printEvidence(fault.NodeID(arg(1)), arg(2))
	default:
		return s.actors(f)
	}
	return nil
}

func (s *scenario) torus(f []string) error {
	sizes := slices.IndexFunc(f, func(o string) bool { return strings.Contains(o, "=") })
	if sizes < 0 {
		sizes = len(f)
	}
	dims, err := grid.ParseDims(strings.Join(f[:sizes], " "))
	if err != nil {
		return err
	}
	cfg := testConfig(dims)
	for _, o := range f[sizes:] {
		k, v, _ := strings.Cut(o, "=")
		if k != "holdoff" && labelAlong(&cfg, k, v) {
			continue
		}
		if k != "holdoff" {
			return fmt.Errorf("option %q", o)
		}
		if cfg.HoldOff, err = time.ParseDuration(v); err != nil {
			return err
		}
	}
	if s.w, err = newWorld(cfg); err == nil {
		s.w.log = s.print
	}
	return err
}

// labelAlong labels the nodes by their coordinate on an axis, if axis is one.
func labelAlong(cfg *Config, key, axis string) bool {
	k := strings.Index("XYZ", axis)
	if len(axis) != 1 || k < 0 {
		return false
	}
	label(cfg, key, func(c grid.Coord) int { return [3]int{c.X, c.Y, c.Z}[k] })
	return true
}

func (s *scenario) relabel(f []string) error {
	cfg := &s.w.cfg
	cfg.Labels, cfg.DomainLabels = nil, nil
	for _, o := range f {
		if k, v, _ := strings.Cut(o, "="); !labelAlong(cfg, k, v) {
			return fmt.Errorf("option %q", o)
		}
	}
	s.w.step(Labelled{Labels: cfg.Labels, DomainLabels: cfg.DomainLabels})
	return nil
}

// move executes move, follow and up.
func (s *scenario) move(f []string) error {
	w := s.w
	if f[0] == "move" {
		dims, err := grid.ParseDims(strings.Join(f[1:], " "))
		if err == nil {
			w.move(dims)
		}
		return err
	}
	id := fault.NodeID(f[1])
	if f[0] == "follow" {
		w.follow(id)
		return nil
	}
	for _, d := range w.dims.LinksOf(w.coord(id)) {
		to, _ := w.dims.Neighbour(w.coord(id), d)
		for _, end := range [...]subject{{id, fault.Link(d)}, {w.cfg.IDs[to], fault.Link(d.Opposite())}} {
			if a := w.actor(end.node, fault.HalfHost); a.alive {
				w.say(a, end, fault.Normal, fault.KindSelf, 0)
			}
		}
	}
	return nil
}

func (s *scenario) silence(f []string) error {
	id, by, age := fault.NodeID(f[1]), "", time.Duration(0)
	var err error
	if f[0] == "silence" {
		if age, err = time.ParseDuration(f[2]); err != nil {
			return err
		}
	}
	if i := len(f) - 2; f[i] == "by" {
		by = f[i+1]
	}
	if by != "" {
		s.w.silenceBy(s.w.actor(fault.NodeID(by), fault.HalfHost), s.w.coord(id), f[0] == "hear", age)
		return nil
	}
	s.w.silence(id, f[0] == "hear", age)
	return nil
}

// say executes NODE/HALF SUBJECT COMPONENT STATE KIND [AGE].
func (s *scenario) say(f []string) error {
	a, err := s.find(f[0])
	if err != nil {
		return err
	}
	comp, err := fault.ParseComponent(f[2])
	if err != nil {
		return err
	}
	state, err := fault.ParseState(f[3])
	if err != nil {
		return err
	}
	kind, err := fault.ParseKind(f[4])
	if err != nil {
		return err
	}
	age := time.Duration(0)
	if len(f) > 5 {
		if age, err = time.ParseDuration(f[5]); err != nil {
			return err
		}
	}
	about := subject{fault.NodeID(f[1]), comp}
	a[0].says[about] = statement{state: state, kind: kind, began: s.w.now.Add(-age), ended: len(f) > 6 && f[6] == "ended"}
	s.w.report(a[0], false, about)
	return nil
}

// notice executes NODE/HALF RESTARTED D.
func (s *scenario) notice(f []string) error {
	by, err := s.find(f[0])
	if err != nil {
		return err
	}
	within, err := time.ParseDuration(f[2])
	if err != nil {
		return err
	}
	half := fault.HalfHost
	if f[1] == "dnp" {
		half = fault.HalfDNP
	}
	by[0].restart = fault.RestartNotice{Half: half, Within: within}
	s.w.report(by[0], false)
	return nil
}

func (s *scenario) stop(f []string) error {
	by, err := s.find(f[0])
	if err != nil {
		return err
	}
	by[0].stop, err = fault.ParseStop(f[1])
	s.w.report(by[0], false)
	return err
}

func (s *scenario) find(name string) ([]*actor, error) {
	node, half, one := strings.Cut(name, "/")
	var out []*actor
	for _, h := range halves {
		if a := s.w.actor(fault.NodeID(node), h); a != nil && (!one || half == h.String()) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no half %s", name)
	}
	return out, nil
}

func (s *scenario) actors(f []string) error {
	as, err := s.find(f[1])
	if err != nil {
		return err
	}
	for _, a := range as {
		switch f[0] {
		case "kill":
			a.alive = false
		case "boot":
			s.w.boot(a)
		case "resume", "cont":
			if a.alive = true; f[0] == "resume" {
				a.born = s.w.now
			}
			s.w.digest(a)
		case "mute", "unmute":
			a.mute = f[0] == "mute"
		case "lose", "find":
			a.lost = f[0] == "lose"
		case "via":
			if a.via, err = fault.ParsePath(f[2]); err != nil {
				return err
			}
			if a.held, err = time.ParseDuration(f[3]); err != nil {
				return err
			}
		case "wait":
			if a.waits, err = time.ParseDuration(f[2]); err != nil {
				return err
			}
		case "replay":
			for _, d := range a.sent {
				s.w.step(Evidence{d})
			}
		default:
			return fmt.Errorf("no such command")
		}
	}
	return nil
}

func (s *scenario) takeover(ruleless bool, behind time.Duration) error {
	saved, warned, groups := s.w.m.Nodes(), s.w.m.Warnings(), s.w.m.Groups()
	for i := range saved {
		if at := &saved[i].Stop; at.Reason != 0 {
			at.Since, at.Until = at.Since.Add(-behind), at.Until.Add(-behind)
		}
		if r := &saved[i].Restart; r.Half != 0 {
			r.Until = r.Until.Add(-behind)
			if !r.Other.IsZero() {
				r.Other = r.Other.Add(-behind)
			}
		}
		if !ruleless {
			continue
		}
		saved[i].Rule = "of a version to come"
		for k := range saved[i].Components {
			saved[i].Components[k].Rule = "of a version to come"
		}
	}
	cfg := s.w.cfg
	cfg.Supervisor = "s1"
	m, err := New(cfg, s.w.now, saved)
	if err != nil {
		return err
	}
	if err := m.RestoreGroups(groups); err != nil {
		return err
	}
	for i, n := range m.Nodes() {
		if n.State != saved[i].State || n.Cause != saved[i].Cause {
			return fmt.Errorf("%s: %s %s restored as %s %s", n.ID, saved[i].State, saved[i].Cause, n.State, n.Cause)
		}
	}
	for _, w := range warned {
		if err := m.RestoreWarning(w); err != nil {
			return err
		}
	}
	s.w.m, s.w.queue = m, nil
	s.w.step(Tick{})
	return nil
}

func (s *scenario) clock(t time.Time) string { return fmt.Sprintf("%.3f", t.Sub(epoch0).Seconds()) }

// print shows a step's output; changes of one node that differ only in the component share a line.
func (s *scenario) print(at time.Time, out Output) {
	for _, w := range out.Warnings {
		what := "warning"
		if w.Ended {
			what = "no more warning"
		}
		s.printf("%s %s %s: %s: %s", s.clock(at), w.Node, w.Component, what, w.Rule)
	}
	defer func() {
		for _, g := range out.Groups {
			s.printGroup(s.clock(at)+" ", g)
		}
	}()
	if s.brief {
		s.printBrief(at, out.Changes)
		return
	}
	for _, c := range out.Challenges {
		if c.Again {
			continue
		}
		who := string(c.Node)
		if c.Half != 0 {
			who += "/" + c.Half.String()
		}
		s.printf("%s challenge %s via %s", s.clock(at), who, join(c.Via))
	}
	for i := 0; i < len(out.Changes); {
		c := out.Changes[i]
		names := []string{c.Component.String()}
		for i++; i < len(out.Changes) && c.Component != fault.ComponentNode; i++ {
			d := out.Changes[i]
			name := d.Component.String()
			d.Component, d.From, d.Was = c.Component, c.From, c.Was
			if d != c {
				break
			}
			names = append(names, name)
		}
		latency := "unknown"
		if c.Latency >= 0 {
			latency = c.Latency.String()
		}
		path := "-"
		if c.Path != 0 {
			path = c.Path.String()
		}
		single := ""
		if c.SingleWitness {
			single = " SINGLE-WITNESS"
		}
		if c.Flapping {
			single += " FLAPPING"
		}
		s.printf("%s %s %s: %s -> %s, cause %s, by %s %s, path %s, latency %s%s: %s", s.clock(at), c.Node, strings.Join(names, " "),
			c.From, c.To, c.Cause, c.Kind, c.Observer, path, latency, single, c.Reason)
	}
}

// printBrief prints the changes of whole nodes; nodes with the same change share a line.
func (s *scenario) printBrief(at time.Time, changes []Change) {
	who, order := map[string][]fault.NodeID{}, []string{}
	for _, c := range changes {
		if c.Component != fault.ComponentNode {
			continue
		}
		line := fmt.Sprintf("%s -> %s, cause %s, by %s", c.From, c.To, c.Cause, c.Kind)
		if c.SingleWitness {
			line += " SINGLE-WITNESS"
		}
		if who[line] == nil {
			order = append(order, line)
		}
		who[line] = append(who[line], c.Node)
	}
	for _, line := range order {
		s.printf("%s %s: %s", s.clock(at), several(who[line]), line)
	}
}

func (s *scenario) printGroup(at string, g GroupStatus) {
	s.printf("%sgroup %s: %s %s, cause %s, %d of %d, %d inferred, rule %s, since %s: %s", at, g.ID, g.Kind, g.State, g.Cause,
		len(g.Members), g.Of, g.Inferred, g.Rule, s.clock(g.Since), several(g.Members))
}

func (s *scenario) printNodes() {
	for _, n := range s.w.m.Nodes() {
		if n.State == fault.Normal {
			continue
		}
		var flags strings.Builder
		for _, f := range []struct {
			on   bool
			name string
		}{{n.SingleWitness, "single witness"}, {n.Inferred, "inferred"}, {n.Unreachable, "unreachable"}} {
			if f.on {
				flags.WriteString(", " + f.name)
			}
		}
		if len(n.Groups) > 0 {
			flags.WriteString(", in " + strings.Join(n.Groups, " "))
		}
		s.printf("%s %s, cause %s%s", n.ID, n.State, n.Cause, flags.String())
	}
}

// boxOf returns the nodes of the box A..B, which may wrap around the torus, or the one node.
func (s *scenario) boxOf(name string) ([]fault.NodeID, error) {
	from, to, box := strings.Cut(name, "..")
	if !box {
		return []fault.NodeID{fault.NodeID(name)}, nil
	}
	lo, err := grid.ParseCoord(from)
	if err != nil {
		return nil, err
	}
	hi, err := grid.ParseCoord(to)
	if err != nil {
		return nil, err
	}
	within := func(lo, hi, x int) bool { return lo <= x && x <= hi || lo > hi && (x >= lo || x <= hi) }
	var out []fault.NodeID
	for r := range s.w.dims.Nodes() {
		if c := s.w.dims.At(r); within(lo.X, hi.X, c.X) && within(lo.Y, hi.Y, c.Y) && within(lo.Z, hi.Z, c.Z) {
			out = append(out, s.w.id(r))
		}
	}
	return out, nil
}

// die kills all nodes of the box; 80 ms later their live neighbours report it.
func (s *scenario) die(name string) error {
	box, err := s.boxOf(name)
	if err != nil {
		return err
	}
	for _, id := range box {
		for _, h := range halves {
			s.w.actor(id, h).alive = false
		}
	}
	s.w.run(80 * time.Millisecond)
	for _, id := range box {
		s.w.silence(id, false, 80*time.Millisecond)
	}
	return nil
}

// cut makes both ends report silence on a link.
func (s *scenario) cut(id fault.NodeID, dir string) error {
	d, err := grid.ParseDirection(dir)
	if err != nil {
		return err
	}
	peer, _ := s.w.dims.Neighbour(s.w.coord(id), d)
	s.w.say(s.w.actor(id, fault.HalfHost), subject{id, fault.Link(d)}, fault.Failed, fault.KindSilence, 75*time.Millisecond)
	s.w.say(s.w.actor(s.w.cfg.IDs[peer], fault.HalfHost), subject{s.w.cfg.IDs[peer], fault.Link(d.Opposite())}, fault.Failed,
		fault.KindSilence, 75*time.Millisecond)
	return nil
}

func (s *scenario) explain(id fault.NodeID, component string) error {
	c := fault.ComponentNode
	if component != "" {
		var err error
		if c, err = fault.ParseComponent(component); err != nil {
			return err
		}
	}
	e, ok := s.w.m.Explain(id, c)
	if !ok {
		return fmt.Errorf("no %s of %s", c, id)
	}
	s.printf("%s, cause %s, rule %s", e.Summary, e.Cause, e.Rule)
	s.reasons(e.Because, e.Until)
	return nil
}

func (s *scenario) explainGroup(id string) error {
	e, ok := s.w.m.ExplainGroup(id)
	if !ok {
		return fmt.Errorf("no group %s", id)
	}
	s.printf("%s, cause %s, rule %s", e.Summary, e.Cause, e.Rule)
	s.reasons(e.Because, e.Until)
	return nil
}

func (s *scenario) reasons(because, until []string) {
	for _, b := range because {
		s.printf("  because %s", b)
	}
	for _, u := range until {
		s.printf("  until %s", u)
	}
}

func (s *scenario) printMap() {
	for _, n := range s.w.m.Nodes() {
		if n.Stop.Reason != 0 {
			s.printf("%s stops: %s at %s, until %s", n.ID, n.Stop.Reason, s.clock(n.Stop.Since), s.clock(n.Stop.Until))
		}
		if n.Restart.Half != 0 {
			s.printf("%s restarts its %s half, until %s", n.ID, n.Restart.Half, s.clock(n.Restart.Until))
		}
		if n.State == fault.Normal {
			continue
		}
		single := ""
		if n.SingleWitness {
			single = ", single witness"
		}
		s.printf("%s %s, cause %s%s", n.ID, n.State, n.Cause, single)
		for _, c := range n.Components {
			if c.State != fault.Normal && (c.State != fault.Unknown || n.State == fault.Unknown || n.State == fault.Failed ||
				c.Component <= fault.ComponentDNP) {
				s.printf("  %s %s, cause %s", c.Component, c.State, c.Cause)
			}
		}
	}
}

func (s *scenario) printLinks(id fault.NodeID) {
	for _, l := range s.w.m.Links() {
		if l.Node == id && l.State != fault.Normal {
			s.printf("%s %s to %s %s, cause %s", l.Node, l.Direction, l.Peer, l.State, l.Cause)
		}
	}
}

func (s *scenario) printEvidence(id fault.NodeID, name string) error {
	comp, err := fault.ParseComponent(name)
	if err != nil {
		return err
	}
	n, ok := s.w.m.Node(id)
	if !ok {
		return fmt.Errorf("no node %s", id)
	}
	for _, c := range n.Components {
		if c.Component == comp {
			s.printf("%s %s %s", id, comp, c.State)
			for _, e := range c.Evidence {
				s.printf("  %s by %s, %s since %s %s", e.Kind, e.Observer, e.State, s.clock(e.At), e.Detail)
			}
		}
	}
	return nil
}
