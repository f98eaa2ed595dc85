package deaths

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// player plays one round.
type player struct {
	*campaign
	step  Step
	round *Round
	node  *guest         // with the host half
	mark  int            // of the events
	boots map[*guest]int // marks of the consoles
	died  time.Time      // when the kernels or the agent died, or the window was cut
}

// dying returns the machines that the round concerns.
func (p *player) dying() []*guest { return p.ring.of(p.step.Node, p.step.Kind.on) }

// play lets the node or a part of it die, and waits until its machines have booted again.
func (p *player) play(ctx context.Context) error {
	p.boots = map[*guest]int{}
	for _, m := range p.ring.of(p.step.Node, onBoth) {
		p.boots[m] = m.console.mark()
	}
	if p.step.Dark {
		if err := p.darken(ctx); err != nil {
			return err
		}
	}
	if err := p.die(ctx); err != nil {
		return err
	}
	if p.step.Kind.ends() {
		for _, m := range p.dying() {
			p.ring.reports.dies(m.name, p.died)
		}
	}
	if p.step.Kind.Fails != "" && !p.step.Dark {
		if err := p.verdict(ctx); err != nil {
			return err
		}
	}
	return p.returns(ctx)
}

// darken pauses the supervisor and waits until reports of the node wait on its disk.
func (p *player) darken(ctx context.Context) error {
	reports := p.ring.reports
	mark := reports.more.mark()
	if err := p.ring.supervisor.qmp.do("stop"); err != nil {
		return err
	}
	if _, err := reports.more.wait(ctx, mark, verdictBound, "a report of "+p.round.Node+" without a supervisor",
		func(machine string) bool { return machine == p.node.name }); err != nil {
		return err
	}
	// The machine's own clock measures the time after which a report is on its disk.
	console := p.node.console.mark()
	if err := p.node.typeIn(fmt.Sprintf("sleep %d; say spooled", int(notOnDisk.Seconds())+2)); err != nil {
		return err
	}
	_, err := p.node.await(ctx, console, verdictBound, "^VM .* spooled")
	return err
}

// die brings the death about, on all machines of the round at once, and notes its time: that of the last one.
func (p *player) die(ctx context.Context) error {
	p.died = time.Now()
	if p.step.Kind.cuts() {
		return p.cutWindow(ctx, true)
	}
	machines := p.dying()
	ends, errs := make([]end, len(machines)), make([]error, len(machines))
	var all sync.WaitGroup
	for i, m := range machines {
		all.Go(func() { ends[i], errs[i] = p.end(ctx, m) })
	}
	all.Wait()
	for _, e := range ends {
		if e.at.After(p.died) {
			p.died = e.at
		}
		if e.hung {
			p.round.Hung = true
			p.step.Kind.End, p.step.Kind.Detail, p.step.Kind.Words = lofamov1.BootEnd_BOOT_WATCHDOG, "watchdog0", false
		}
	}
	return errors.Join(errs...)
}

// end is the end of a kernel, or of an agent.
type end struct {
	at   time.Time // zero: when it was asked for
	hung bool      // the kernel hung instead of panicking, and the watchdog reset the machine
}

// end brings a machine's end about.
func (p *player) end(ctx context.Context, n *guest) (end, error) {
	console, events := n.console.mark(), n.events.mark()
	panics := func(err error) (end, error) {
		if err != nil {
			return end{}, err
		}
		return panicsOrHangs(ctx, n, console, events)
	}
	switch p.step.Kind.how {
	case bySysrq:
		return panics(n.typeIn("echo c >/proc/sysrq-trigger"))
	case byNull:
		return panics(debug(ctx, n.path(".gdb"), jumpToNull))
	case byNMI:
		return panics(n.qmp.do("inject-nmi"))
	case bySoftLockup:
		if err := n.typeIn("echo 1 >/proc/sys/kernel/softlockup_panic; echo 2 >/proc/sys/kernel/watchdog_thresh; say armed"); err != nil {
			return end{}, err
		}
		if _, err := n.await(ctx, console, verdictBound, "^VM .* armed"); err != nil {
			return end{}, err
		}
		began := time.Now() // the panic comes later
		e, err := panics(debug(ctx, n.path(".gdb"), spin(true)))
		e.at = began
		return e, err
	case byHardLockup:
		return end{}, debug(ctx, n.path(".gdb"), spin(false))
	case byHungAgent:
		err := n.typeIn("kill -STOP $agent")
		if err == nil {
			err = n.reset(ctx, events)
		}
		return end{at: time.Now()}, err
	case byPowerCut:
		n.cut()
		return end{}, nil
	case byReset:
		return end{}, n.qmp.do("system_reset")
	case byReboot:
		return end{}, n.typeIn("down reboot")
	case byPowerOff:
		return end{}, n.powerOff()
	case byKilledHalves:
		return end{}, n.typeIn("killall -9 lofamo-agent; say agent killed")
	case byPulledCable, byLostPackets: // no machine ends
	}
	return end{}, fmt.Errorf("no way to die: %d", p.step.Kind.how)
}

// panicsOrHangs waits until the kernel prints that it panics, or until the hardware watchdog resets the machine. A kernel that holds a lock
// that printing needs hangs instead of panicking. Then the campaign expects the node to name the watchdog as the cause.
func panicsOrHangs(ctx context.Context, n *guest, console, events int) (end, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began, hung := time.Now(), make(chan error, 1)
	go func() {
		err := n.reset(ctx, events)
		if err == nil {
			cancel() // ends the wait for the panic
		}
		hung <- err
	}()
	at, err := n.await(ctx, console, dyingBound, "Kernel panic - not syncing")
	if err == nil {
		return end{at: at.at}, nil
	}
	if <-hung != nil {
		return end{}, err
	}
	return end{began, true}, nil
}

// verdict waits until the component that the round breaks is FAILED, and the map names the cause of the node's state.
func (p *player) verdict(ctx context.Context) error {
	k, state := p.step.Kind, lofamov1.State_SICK
	if k.Fails == "node" {
		state = lofamov1.State_FAILED
	}
	changed := func(component string, to lofamov1.State, cause lofamov1.Cause) func(*lofamov1.Event) bool {
		return func(e *lofamov1.Event) bool {
			return e.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED && e.GetNode() == p.round.Node && e.GetComponent() == component &&
				e.GetTo() == to && e.GetCause() == cause
		}
	}
	for _, want := range []struct {
		component string
		state     lofamov1.State
	}{{k.Fails, lofamov1.State_FAILED}, {"node", state}} {
		seen, err := p.events.wait(ctx, p.mark, verdictBound, fmt.Sprintf("%s %s is %s by cause %s", p.round.Node, want.component, want.state,
			k.cause()), changed(want.component, want.state, k.cause()))
		if err != nil {
			return err
		}
		p.round.Verdict = max(p.round.Verdict, seen.at.Sub(p.died))
	}
	return nil
}

// returns waits until the node's agents run again, and lets the supervisor go on.
func (p *player) returns(ctx context.Context) error {
	if p.step.Kind.cuts() {
		// False verdicts have some time to appear: the checker finds them.
		select {
		case <-ctx.Done():
		case <-time.After(cutHold):
		}
		return p.cutWindow(ctx, false)
	}
	for _, m := range p.dying() {
		var err error
		switch p.step.Kind.how {
		case byPowerCut, byPowerOff:
			err = m.start(ctx)
		case byKilledHalves:
			err = m.typeIn("start")
		default: // the machine boots by itself
		}
		if err != nil {
			return err
		}
	}
	if p.step.Kind.Words {
		if err := p.words(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, m := range p.dying() {
		_, err := m.await(ctx, p.boots[m], bootBound, "^VM .* agent started")
		errs = append(errs, err)
	}
	if p.step.Dark {
		counts, err := p.ring.reports.count()
		p.round.Waited = counts.waiting[p.node.name]
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// words waits for the kernel's last words. With a paused supervisor they come later, or not at all: the receiver keeps them, but the
// next boot of the machine ends them.
func (p *player) words(ctx context.Context) error {
	panicked, err := p.node.await(ctx, p.boots[p.node], dyingBound, "Kernel panic - not syncing")
	if err != nil || p.step.Dark {
		return err
	}
	seen, err := p.events.wait(ctx, p.mark, wordsBound, "last words of "+p.round.Node, func(e *lofamov1.Event) bool {
		return e.GetNode() == p.round.Node && strings.HasPrefix(e.GetReason(), "last kernel words") &&
			strings.Contains(e.GetReason(), p.step.Kind.Detail)
	})
	if err == nil {
		p.round.Words = max(seen.at.Sub(panicked.at), time.Millisecond)
	}
	return err
}

// ended reports whether an event names the end of the node's last boot.
func (p *player) ended(e *lofamov1.Event) bool {
	return e.GetNode() == p.round.Node && strings.HasPrefix(e.GetReason(), "last boot ended by: ")
}

// named waits until the supervisor publishes how the node's last boot ended, if a boot ended.
func (p *player) named(ctx context.Context) error {
	if p.step.Kind.End == 0 {
		return nil
	}
	seen, err := p.events.wait(ctx, p.mark, bootBound, "the end of the last boot of "+p.round.Node, p.ended)
	if err == nil {
		p.round.Named = seen.at.Sub(p.died)
	}
	return err
}

// lastBoot checks the name of the death: one event, and the node's state.
func (p *player) lastBoot(ctx context.Context) error {
	events := 0
	for _, e := range p.events.since(p.mark) {
		if p.ended(e.of) {
			events++
		} else if strings.HasPrefix(e.of.GetReason(), "last boot ended by: ") {
			return fmt.Errorf("the end of a boot of another node: %s: %s", e.of.GetNode(), e.of.GetReason())
		}
	}
	if p.step.Kind.End == 0 {
		p.round.Right = events == 0
		if events > 0 {
			return fmt.Errorf("%d ends of a boot: want none", events)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	node, err := p.ring.client.GetNode(ctx, p.round.Node)
	if err != nil {
		return err
	}
	boot := node.GetHostHealth().GetLastBoot()
	p.round.End, p.round.Detail = strings.TrimPrefix(boot.GetEnd().String(), "BOOT_"), boot.GetDetail()
	p.round.Right = p.step.Kind.named(boot) && events == 1
	if !p.round.Right {
		return fmt.Errorf("named %s %q in %d events: want %s %q... in one", boot.GetEnd(), boot.GetDetail(), events, p.step.Kind.End,
			p.step.Kind.Detail)
	}
	return nil
}

// settle waits until everything is NORMAL again after the node's return, and returns the time.
func (p *player) settle(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, normalBound)
	defer cancel()
	var unsettled []string
	for {
		mark := p.events.mark()
		list, err := p.nodes(ctx)
		if err == nil {
			p.mu.Lock()
			unsettled = p.checker.Unsettled(list.GetNodes())
			p.mu.Unlock()
			if len(unsettled) == 0 && healthy(list.GetNodes()) {
				return time.Now(), nil
			}
		}
		// The next event, or a pause.
		_, _ = p.events.wait(ctx, mark, time.Second, "an event", func(*lofamov1.Event) bool { return true })
		if ctx.Err() != nil {
			return time.Time{}, fmt.Errorf("not NORMAL within %s: %s: %w", normalBound, strings.Join(unsettled, ", "), errors.Join(ctx.Err(), err))
		}
	}
}

// delivered waits until every report that a node kept is committed, and none twice. A report that failed a round fails no later one.
func (p *player) delivered(ctx context.Context) error {
	fresh := func(ids []string) []string {
		return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return p.failed[id] })
	}
	for end := time.Now().Add(deliverBound); ; {
		counts, err := p.ring.reports.count()
		if err != nil {
			return err
		}
		p.counts = counts
		lost, doubled := fresh(counts.Lost), fresh(counts.Doubled)
		late := time.Now().After(end) || ctx.Err() != nil
		if late || len(doubled) > 0 {
			for _, id := range slices.Concat(lost, doubled) {
				p.failed[id] = true
			}
		}
		switch {
		case len(doubled) > 0:
			return fmt.Errorf("reports doubled: %v", doubled)
		case len(lost) == 0:
			return nil
		case late:
			return fmt.Errorf("reports not delivered within %s: %v", deliverBound, lost)
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}
