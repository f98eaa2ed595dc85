package deaths

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// player plays one round.
type player struct {
	*campaign
	step  Step
	round *Round
	node  *guest
	mark  int       // of the events
	boots int       // mark of the console
	died  time.Time // when the kernel or the agent died
}

// play lets the node die and waits until its machine has booted again and the supervisor has named it.
func (p *player) play(ctx context.Context) error {
	p.boots = p.node.console.mark()
	if p.step.Dark {
		if err := p.darken(ctx); err != nil {
			return err
		}
	}
	if err := p.die(ctx); err != nil {
		return err
	}
	if p.step.Kind.End != 0 {
		p.ring.reports.dies(p.step.Node, p.died)
	}
	if p.step.Kind.Dead && !p.step.Dark {
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
		func(i int) bool { return i == p.step.Node }); err != nil {
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

// die brings the death about and notes its time.
func (p *player) die(ctx context.Context) error {
	p.died = time.Now()
	n, console, events := p.node, p.node.console.mark(), p.node.events.mark()
	panics := func(err error) error {
		if err != nil {
			return err
		}
		return p.panicsOrHangs(ctx, console, events)
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
			return err
		}
		if _, err := n.await(ctx, console, verdictBound, "^VM .* armed"); err != nil {
			return err
		}
		began := time.Now() // the panic comes later
		err := panics(debug(ctx, n.path(".gdb"), spin(true)))
		p.died = began
		return err
	case byHardLockup:
		return debug(ctx, n.path(".gdb"), spin(false))
	case byHungAgent:
		err := n.typeIn("kill -STOP $agent")
		if err == nil {
			err = n.reset(ctx, events)
		}
		p.died = time.Now()
		return err
	case byPowerCut:
		n.cut()
		return nil
	case byReset:
		return n.qmp.do("system_reset")
	case byReboot:
		return n.typeIn("down reboot")
	case byPowerOff:
		return n.powerOff()
	case byKilledHalves:
		return n.typeIn("killall -9 lofamo-agent; say agent killed")
	}
	return fmt.Errorf("no way to die: %d", p.step.Kind.how)
}

// panicsOrHangs waits until the kernel prints that it panics, or until the hardware watchdog resets the machine. A kernel that holds a lock
// that printing needs hangs instead of panicking. Then the campaign expects the node to name the watchdog as the cause.
func (p *player) panicsOrHangs(ctx context.Context, console, events int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began, hung := time.Now(), make(chan error, 1)
	go func() {
		err := p.node.reset(ctx, events)
		if err == nil {
			cancel() // ends the wait for the panic
		}
		hung <- err
	}()
	at, err := p.node.await(ctx, console, dyingBound, "Kernel panic - not syncing")
	if err == nil {
		p.died = at.at
		return nil
	}
	if <-hung != nil {
		return err
	}
	p.died, p.round.Hung = began, true
	p.step.Kind.End, p.step.Kind.Detail, p.step.Kind.Words = lofamov1.BootEnd_BOOT_WATCHDOG, "watchdog0", false
	return nil
}

// verdict waits until the node is FAILED.
func (p *player) verdict(ctx context.Context) error {
	seen, err := p.events.wait(ctx, p.mark, verdictBound, p.round.Node+" is FAILED", func(e *lofamov1.Event) bool {
		return e.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED && e.GetNode() == p.round.Node && e.GetComponent() == "node" &&
			e.GetTo() == lofamov1.State_FAILED
	})
	if err == nil {
		p.round.Verdict = seen.at.Sub(p.died)
	}
	return err
}

// returns waits until the node's agent runs again, and lets the supervisor go on.
func (p *player) returns(ctx context.Context) error {
	switch p.step.Kind.how {
	case byPowerCut, byPowerOff:
		if err := p.node.start(ctx); err != nil {
			return err
		}
	case byKilledHalves:
		if err := p.node.typeIn("start"); err != nil {
			return err
		}
	default: // the machine boots by itself
	}
	if p.step.Kind.Words {
		if err := p.words(ctx); err != nil {
			return err
		}
	}
	_, err := p.node.await(ctx, p.boots, bootBound, "^VM .* agent started")
	if p.step.Dark {
		counts, cerr := p.ring.reports.count()
		p.round.Waited = counts.waiting[p.step.Node]
		err = errors.Join(err, cerr)
	}
	return err
}

// words waits for the kernel's last words. With a paused supervisor they come later, or not at all: the receiver keeps them, but the
// next boot of the machine ends them.
func (p *player) words(ctx context.Context) error {
	panicked, err := p.node.await(ctx, p.boots, dyingBound, "Kernel panic - not syncing")
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
			return fmt.Errorf("%d ends of a boot, and the kernel lives", events)
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
