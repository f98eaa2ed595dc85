package udplink

import (
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNoWarningWhilePeerMayStart: agents that start together refuse each other's first connections. That is no warning,
// but everything else is, and so is a peer that does not start.
func TestNoWarningWhilePeerMayStart(t *testing.T) {
	refused := func(t *testing.T, a *node) error {
		t.Helper()
		_, _, err := a.link.dial(t.Context(), a.link.remote.Load())
		if err == nil {
			t.Fatal("a handshake succeeded without a peer")
		}
		return err
	}
	link := func(t *testing.T, change func(*Config)) *node {
		t.Helper()
		a, _ := pairOf(t)
		change(&a.cfg)
		l, err := Listen(a.cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		a.link = l
		return a
	}
	t.Run("nobody listens", func(t *testing.T) {
		a := link(t, func(*Config) {})
		err, soon, late := refused(t, a), a.link.began.Add(peerStart-1), a.link.began.Add(peerStart)
		if a.link.deservesWarning(err, soon) {
			t.Errorf("a warning before %s: %v", peerStart, err)
		}
		for _, tt := range []struct {
			at   time.Time
			want bool
		}{{late, true}, {late.Add(warnEvery - time.Second), false}, {late.Add(warnEvery), true}} {
			if got := a.link.deservesWarning(err, tt.at); got != tt.want {
				t.Errorf("after %s: a warning %t, want %t", tt.at.Sub(a.link.began), got, tt.want)
			}
		}
	})
	t.Run("another error", func(t *testing.T) {
		a := link(t, func(*Config) {})
		if !a.link.deservesWarning(errors.New("unknown authority"), a.link.began) {
			t.Error("no warning of a wrong certificate")
		}
	})
	t.Run("after a session", func(t *testing.T) {
		a := link(t, func(*Config) {})
		a.link.made.Store(&handshaken{})
		if !a.link.deservesWarning(refused(t, a), a.link.began) {
			t.Error("no warning of a peer that does not listen any more")
		}
	})
	t.Run("after a session of an earlier process", func(t *testing.T) {
		a := link(t, func(c *Config) { c.Resumed = true })
		if !a.link.deservesWarning(refused(t, a), a.link.began) {
			t.Error("no warning of a peer that does not listen any more")
		}
	})
}

// TestKnockFindsPeerThatAccepts: two ends that both wait for a handshake find each other's certificate by a knock, and get no session. A
// peer that dials, as it should, refuses a knock.
func TestKnockFindsPeerThatAccepts(t *testing.T) {
	a, b := pairOf(t)
	a.cfg.Dialer = false
	seen := make(chan string, 1)
	b.cfg.VerifyPeer = func(c *x509.Certificate) error {
		select {
		case seen <- c.Subject.CommonName:
		default:
		}
		return errors.New("not the peer")
	}
	a.start()
	b.start()
	// The other end gives a caller little time, so a knock on a busy machine may need to be repeated.
	knock := func(verify func(*x509.Certificate) error, done func(proved bool, err error) bool) {
		t.Helper()
		for end := time.Now().Add(bound); ; sleep(t.Context(), minBackoff) {
			proved, err := a.link.Knock(t.Context(), verify)
			if done(proved, err) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("no knock succeeded within %s: proved %t, %v", bound, proved, err)
			}
		}
	}
	name := ""
	knock(func(c *x509.Certificate) error { name = c.Subject.CommonName; return nil },
		func(proved bool, err error) bool { return proved && err == nil })
	if got := <-seen; name != "b" || got != "a" {
		t.Errorf("a saw %q, b saw %q: want each other", name, got)
	}
	knock(only("a"), func(proved bool, err error) bool {
		if err == nil || proved {
			t.Errorf("another certificate: proved %t, %v", proved, err)
		}
		return err == nil || proved || strings.Contains(err.Error(), `certificate of "b"`)
	})
	if n := a.link.Stats().Handshakes + b.link.Stats().Handshakes; n != 0 {
		t.Errorf("%d sessions", n)
	}
	a.link.SetFaults(LinkFaults{BlockOut: true})
	if _, err := a.link.Knock(t.Context(), only("b")); !errors.Is(err, errBlocked) {
		t.Errorf("blocked: %v", err)
	}
	c, d := pairOf(t)
	c.start() // it dials
	d.start()
	d.untilNormal()
	if _, err := d.link.Knock(t.Context(), only("a")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a peer that dials: %v", err)
	}
	c.untilNormal()
}
