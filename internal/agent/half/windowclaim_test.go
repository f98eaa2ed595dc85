package half

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// TestBothEndsClaimDNPsPlace: both ends of a window are configured as the DNP half. Each names the other one in its log, and counts
// it as a second claimant. The state of the window blames no half. It works as soon as one end is the host half.
func TestBothEndsClaimDNPsPlace(t *testing.T) {
	host, card := windowHalves(t)
	wrong := card
	wrong.Window = host.Window
	a, b := openEnd(t, card, fault.HalfDNP), openEnd(t, wrong, fault.HalfDNP)
	for _, e := range []*windowEnd{a, b} {
		await(t, "the claim of the other end", func() bool {
			return e.counts().SecondClaimant > 0 && e.State(time.Now()).State == watchdog.WindowClaimed
		}, a, b)
		await(t, "a line in the log", func() bool {
			return e.logs.count("level=WARN", "claim the window fails", "the dnp half as well", e.common.Config.Window.Peer) == 1
		}, a, b)
	}
	b.stop()
	right := openEnd(t, host, fault.HalfHost)
	await(t, "the host half's words", func() bool {
		_, s, err := a.own.File.TakeHost()
		return err == nil && s.Valid && a.State(time.Now()).State == watchdog.WindowAlive
	}, a, right)
	await(t, "a log line that the claim works", func() bool { // the next write logs it
		return a.logs.count("claim the window works again") > 0
	}, a, right)
	if a.logs.count("claim the window works again") != 1 || right.counts().SecondClaimant != 0 {
		t.Errorf("%+v\n%s", right.counts(), a.logs.all())
	}
}

// TestHostStaysWithFirstCard: two cards have the keys and the address of one node's DNP half, and the second one gets the next
// handshake. The host stays with the first one while its lease lasts, also if the second one has a newer boot epoch: their
// kernels differ, so it is no restart. Both the host and the second card name the claim. The second card takes over from a dead one.
func TestHostStaysWithFirstCard(t *testing.T) {
	for name, epoch := range map[string]fault.Epoch{"older boot epoch": 1, "newer boot epoch": 3} {
		t.Run(name, func(t *testing.T) {
			cfg, first := windowHalves(t)
			second := first
			wire := joinBy(t, &cfg, &first, &second)
			host, a, b := openEnd(t, cfg, fault.HalfHost), openEnd(t, first, fault.HalfDNP), openEnd(t, second, fault.HalfDNP)
			a.own.SetEpoch(2)
			b.own.SetEpoch(epoch)
			b.mu.Lock()
			b.boot[0]++ // another kernel
			b.mu.Unlock()
			served := func(by *windowEnd) func() bool {
				return func() bool {
					w, s, err := host.own.File.TakeDNP()
					return err == nil && s.Valid && w.Core == by.core() && host.own.File.Epoch(fault.HalfDNP) == by.own.epoch
				}
			}
			await(t, "the first card's words", served(a), host, a)
			wire.answers.Store(1)
			await(t, "the second card's session", func() bool { host.link.Redial(); return b.counts().Sessions > 0 }, host, a)
			await(t, "the second card's claim at the host", func() bool { return host.counts().SecondClaimant > 0 }, host, a, b)
			await(t, "the refusal at the second card", func() bool {
				return b.logs.count("claim the window fails", "another process of the dnp half") == 1
			}, host, a, b)
			for at := host.counts().Statements; host.counts().Statements < at+20; {
				await(t, "the first card's words", served(a), host, a, b)
			}
			if host.logs.count("accept statements through the window fails", "second process") != 1 ||
				a.logs.count("fails") != 0 || a.counts().SecondClaimant != 0 {
				t.Errorf("%+v\n%s\n%s", a.counts(), host.logs.all(), a.logs.all())
			}
			for _, e := range []*windowEnd{a, b} {
				if s := e.State(time.Now()).State; s != watchdog.WindowAlive {
					t.Errorf("the host's window is %s for a card: want alive", s)
				}
			}
			a.stop()
			await(t, "the second card's words", served(b), host, b)
		})
	}
}

// TestCardAtAnotherAddressGetsNoSession: a second card with the DNP half's keys and another address is not dialled. It says so, once, and
// the host's window to the first card carries on.
func TestCardAtAnotherAddressGetsNoSession(t *testing.T) {
	cfg, card := windowHalves(t)
	second := card
	second.Window.Listen = freeport.Addr(t).String()
	host, a, b := openEnd(t, cfg, fault.HalfHost), openEnd(t, card, fault.HalfDNP), openEnd(t, second, fault.HalfDNP)
	await(t, "the second card's complaint", func() bool {
		return b.logs.count("level=WARN", "serve the window fails", "does not dial", cfg.Window.Listen) == 1
	}, host, a, b)
	await(t, "the first card's words", func() bool {
		_, s, err := host.own.File.TakeDNP()
		return err == nil && s.Valid
	}, host, a, b)
	if w := host.counts(); w.Sessions < 1 || w.SecondClaimant != 0 || b.counts().Sessions != 0 {
		t.Errorf("host %+v, second card %+v", w, b.counts())
	}
}
