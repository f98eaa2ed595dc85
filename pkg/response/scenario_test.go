package response_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestScenarios plays testdata/*.txt. Commands:
//
//	cluster DIMS [LIMIT=VALUE...]     a torus with racks along X and a leader; limits are the fields of Config
//	policies NAME...                  of testdata/policies.yaml
//	at TIME                           time passes, with a tick whenever the engine wants one
//	fault NODE COMPONENT STATE [by=WITNESS,...] [single] [alive=AGO] [restarting=FOR] [accused-by=NODE]
//	      [watchdog=TIMEOUT,CONTACTWITHIN | watchdog=off] [stopped]   as the node has stated it
//	      [kernel-dead=yes|no]     whether its kernel is proven dead, or alive
//	                               by the node itself, unless a witness is named; the accused last signed something AGO before
//	cut NODE                          all neighbours call their links to the node FAILED
//	ok NODE COMPONENT                 the fault is gone
//	group ID KIND NODE...             a group fault; without nodes it is gone
//	evidence fresh|stale              whether newer evidence is available
//	land done|unchanged|partly|unknown [DETAIL]   what all effects under way come to
//	settle done|unchanged|partly|unknown [DETAIL] the outcomes of former leaders' attempts, by their executors
//	lose                              the effects under way are never heard of again
//	ask SUBJECT VERB [RESPONSE]
//	leader                            another replica leads
//	mark [NODE...]                    the nodes in maintenance
//	label NODE KEY=VALUE
//	unread NAME...                    policies in force that this leader cannot read; the others remain in force
//	supervisors NODE...               where they run; a '-' before: it is dead; '?': its place is unknown
//	boot NODE EPOCH
//	show                              the open responses
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		p := &player{t: t, pols: testPolicies(t)}
		return golden.Lines(t, text, "> ", p.do)
	})
}

type player struct {
	t    *testing.T
	pols map[string]*response.Policy
	l    *lab
	out  []string
}

func (p *player) do(args []string) ([]string, error) {
	p.out = nil
	err := p.command(args[0], args[1:])
	return p.out, err
}

// command is long because it lists all commands.
func (p *player) command(cmd string, args []string) error {
	l := p.l
	switch cmd {
	case "cluster":
		return p.cluster(args)
	case "policies":
		l.pols = nil
		for _, name := range args {
			if p.pols[name] == nil {
				return fmt.Errorf("no policy %s", name)
			}
			l.pols = append(l.pols, p.pols[name])
		}
		l.step(response.PoliciesChanged{Policies: l.pols})
	case "at":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		l.until(start.Add(d))
	case "fault", "ok":
		return p.fault(args)
	case "group":
		g := response.Group{ID: args[0], Kind: args[1], State: fault.Failed, Cause: fault.CauseNode, Since: l.now, At: l.now}
		for _, id := range args[2:] {
			g.Members = append(g.Members, fault.NodeID(id))
		}
		if g.Of = len(g.Members); g.Of == 0 {
			g.State = fault.Normal
		}
		l.groups[g.ID] = g
		l.step(response.GroupChanged{Group: g})
	case "cut":
		p.cut(fault.NodeID(args[0]))
	case "evidence":
		l.stale = args[0] == "stale"
	case "land", "settle":
		o := map[string]response.Outcome{"done": response.Succeeded, "unchanged": response.Unchanged, "partly": response.Partly,
			"unknown": response.NotKnown}[args[0]]
		if cmd == "settle" {
			l.flying, l.unsettled = l.unsettled, nil
		}
		l.land(o, strings.Join(args[1:], " "))
	case "lose":
		l.flying = nil
	case "ask":
		return p.ask(args)
	case "leader":
		l.lead()
	case "mark":
		l.marks = nil
		for _, id := range args {
			l.marks = append(l.marks, fault.NodeID(id))
		}
		l.step(response.MaintenanceChanged{Nodes: l.marks})
	case "label":
		i := slices.IndexFunc(l.topo.Nodes, func(n response.NodeInfo) bool { return string(n.ID) == args[0] })
		k, v, _ := strings.Cut(args[1], "=")
		l.topo.Nodes[i].Labels[k] = v
		l.step(l.topo)
	case "supervisors":
		l.sups = nil
		for i, node := range args {
			id, dead := strings.CutPrefix(node, "-")
			s := response.SupervisorInfo{ID: fmt.Sprintf("s%d", i+1), Node: fault.NodeID(id), Alive: !dead}
			if id == "?" {
				s.Node, s.Unknown = "", true
			}
			l.sups = append(l.sups, s)
		}
		l.step(response.SupervisorsChanged{Supervisors: l.sups})
	case "unread":
		ev := response.PoliciesChanged{Unread: args}
		for _, pol := range l.pols {
			if !slices.Contains(args, pol.Name) {
				ev.Policies = append(ev.Policies, pol)
			}
		}
		l.step(ev)
	case "boot":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		l.epochs[fault.NodeID(args[0])] = fault.Epoch(n)
		l.step(response.Booted{Node: fault.NodeID(args[0]), Epoch: fault.Epoch(n)})
	case "show":
		p.show()
	default:
		return fmt.Errorf("no command %s", cmd)
	}
	return nil
}

func (p *player) cluster(args []string) error {
	dims, err := grid.ParseDims(args[0])
	if err != nil {
		return err
	}
	cfg := response.Default()
	cfg.Grace = 0
	numbers := map[string]*int{
		"MaxNodes": &cfg.MaxNodes, "MaxPercent": &cfg.MaxPercent, "MaxPerDomain": &cfg.MaxPerDomain, "MaxPerPlane": &cfg.MaxPerPlane,
		"Rate":           &cfg.Rate,
		"BreakerPercent": &cfg.BreakerPercent, "BreakerNodes": &cfg.BreakerNodes, "MaxActive": &cfg.MaxActive, "Approvals": &cfg.Approvals,
	}
	times := map[string]*time.Duration{"Grace": &cfg.Grace, "StormDelay": &cfg.StormDelay, "Cooldown": &cfg.Cooldown,
		"MaxEvidenceAge": &cfg.MaxEvidenceAge}
	for _, arg := range args[1:] {
		k, v, _ := strings.Cut(arg, "=")
		switch {
		case numbers[k] != nil:
			if *numbers[k], err = strconv.Atoi(v); err != nil {
				return err
			}
		case times[k] != nil:
			if *times[k], err = time.ParseDuration(v); err != nil {
				return err
			}
		default:
			return fmt.Errorf("no limit %s", k)
		}
	}
	p.l = newLab(p.t, cfg, dims)
	p.l.on = p.print
	p.l.lead()
	return nil
}

func (p *player) fault(args []string) error {
	c, err := fault.ParseComponent(args[1])
	if err != nil {
		return err
	}
	state := fault.Normal
	if len(args) > 2 {
		if state, err = fault.ParseState(args[2]); err != nil {
			return err
		}
	}
	f := p.l.own(fault.NodeID(args[0]), c, state)
	for _, arg := range args[min(3, len(args)):] {
		if by, ok := strings.CutPrefix(arg, "by="); ok {
			f.Evidence.Kind, f.Evidence.Own, f.Evidence.Witnesses = fault.KindVotes, false, strings.Split(by, ",")
		}
		if ago, ok := strings.CutPrefix(arg, "alive="); ok {
			d, err := time.ParseDuration(ago)
			if err != nil {
				return err
			}
			f.Evidence.Life = p.l.now.Add(-d)
		}
		if left, ok := strings.CutPrefix(arg, "restarting="); ok {
			d, err := time.ParseDuration(left)
			if err != nil {
				return err
			}
			f.Evidence.Restarting = p.l.now.Add(d)
		}
		if who, ok := strings.CutPrefix(arg, "accused-by="); ok {
			f.Accusers = []fault.NodeID{fault.NodeID(who)}
		}
		if text, ok := strings.CutPrefix(arg, "watchdog="); ok {
			timeout, contact, armed := strings.Cut(text, ",")
			f.Watchdog = response.Watchdog{Armed: armed, Boot: 1}
			if armed {
				if f.Watchdog.Timeout, err = time.ParseDuration(timeout); err != nil {
					return err
				}
				if f.Watchdog.ContactWithin, err = time.ParseDuration(contact); err != nil {
					return err
				}
			}
		}
		switch arg {
		case "kernel-dead=yes":
			f.KernelDead = fault.KernelIsDead
		case "kernel-dead=no":
			f.KernelDead = fault.KernelIsAlive
		}
		f.Stopped = f.Stopped || arg == "stopped"
		f.Evidence.SingleWitness = f.Evidence.SingleWitness || arg == "single"
	}
	p.l.set(f)
	return nil
}

// cut makes all neighbours of a node call their links to it FAILED.
func (p *player) cut(id fault.NodeID) {
	for _, n := range p.l.topo.Nodes {
		if n.ID != id {
			continue
		}
		for _, dir := range grid.Directions() {
			at, _ := p.l.topo.Dims.Neighbour(n.Coord, dir)
			p.l.set(p.l.own(fault.DefaultNodeID(at), fault.Link(dir.Opposite()), fault.Failed))
		}
	}
}

func (p *player) ask(args []string) error {
	verbs := map[string]response.Verb{
		"approve": response.Approve, "deny": response.Deny, "cancel": response.Cancel, "retry": response.Retry,
		"happened": response.SettleHappened,
		"did-not":  response.SettleNot, "close-breaker": response.CloseBreaker,
	}
	id := ""
	if len(args) > 2 {
		id = args[2]
	}
	if err := p.l.ask(args[0], verbs[args[1]], id); err != nil {
		p.out = append(p.out, "error: "+err.Error())
	}
	return nil
}

// print writes an output as text.
func (p *player) print(out response.Output) {
	at := p.l.now.Sub(start).String()
	line := func(format string, args ...any) {
		p.out = append(p.out, strings.TrimRight(fmt.Sprintf("%-6s ", at)+fmt.Sprintf(format, args...), " "))
	}
	for _, d := range out.Decisions {
		var parts []string
		for _, s := range []string{d.Response, d.Policy} {
			if s != "" {
				parts = append(parts, s)
			}
		}
		if d.Target != (response.Target{}) {
			parts = append(parts, d.Target.String())
		}
		if d.Step != "" && d.Act != response.Proposes {
			parts = append(parts, d.Step)
		}
		if d.Reason != 0 {
			parts = append(parts, "because: "+d.Reason.String())
		}
		if d.Subject != "" {
			parts = append(parts, "by "+d.Subject)
		}
		if d.Detail != "" {
			parts = append(parts, "("+d.Detail+")")
		}
		line("%s %s", d.Act, strings.Join(parts, " "))
	}
	for _, f := range out.Effects {
		extra := ""
		if f.Recheck {
			extra = ", look first"
		}
		verb := "do"
		if f.Undo {
			verb = "undo"
		}
		line("! %s %s on %s: %s attempt %d, token %d%s", verb, f.Kind, f.Target, f.IdempotencyKey, f.Attempt.Attempt, f.Token, extra)
	}
	for _, f := range out.Unsettled {
		line("? outcome of %s on %s: %s attempt %d, token %d", f.Kind, f.Target, f.IdempotencyKey, f.Attempt.Attempt, f.Token)
	}
	for _, a := range out.Stops {
		line("! stop %s/%d attempt %d", a.Response, a.Step, a.Attempt)
	}
	for _, t := range out.Look {
		line("? evidence of %s", t)
	}
	for _, key := range out.Forget {
		line("forget %s", key)
	}
}

func (p *player) show() {
	for _, r := range p.l.e.Responses() {
		var steps []string
		for _, s := range r.Steps {
			steps = append(steps, fmt.Sprintf("%s %s", s.Name, s.State))
		}
		why := ""
		if r.Reason != 0 {
			why = ": " + r.Reason.String()
		}
		p.out = append(p.out, fmt.Sprintf("%s %s %s %s%s [%s]", r.ID, r.Policy, r.Target, r.State, why, strings.Join(steps, ", ")))
	}
	if p.l.e.Breaker().Open {
		p.out = append(p.out, "breaker open")
	}
}
