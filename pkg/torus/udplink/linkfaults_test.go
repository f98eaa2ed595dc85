package udplink

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestLinkFaultsValidate(t *testing.T) {
	if err := (LinkFaults{DropIn: 1, DupOut: 0.5, DelayOut: MaxDelay}).Validate(); err != nil {
		t.Error(err)
	}
	err := LinkFaults{DropIn: -0.1, DropOut: 1.1, CorruptIn: math.NaN(), CorruptOut: 2, DupOut: -1, DelayOut: MaxDelay + 1}.Validate()
	for _, want := range []string{"DropIn -0.1: want 0 to 1", "DropOut", "CorruptIn NaN", "CorruptOut", "DupOut", "DelayOut 10.000000001s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestLinkFaults(t *testing.T) {
	na, nb := pairOf(t)
	got := make(sink, 1024)
	a, b := wires(t, na.cfg, nb.cfg, make(sink), got)
	send := func(n int) {
		for i := range n {
			if err := a.Send([]byte{byte(i), 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
		}
		// A mark that is neither altered nor overtaken ends the packets sent before.
		a.SetFaults(LinkFaults{})
		if err := a.Send([]byte("end")); err != nil {
			t.Fatal(err)
		}
	}
	collect := func() (packets [][]byte) {
		for {
			select {
			case p := <-got:
				if string(p) == "end" {
					return packets
				}
				packets = append(packets, p)
			case <-time.After(bound):
				t.Fatal("the mark did not arrive")
			}
		}
	}
	intact := func(ps [][]byte) (n int) {
		for _, p := range ps {
			if p[1] == 0 && p[2] == 0 && p[3] == 0 {
				n++
			}
		}
		return n
	}

	a.SetFaults(LinkFaults{DropOut: 0.5})
	send(40)
	if n := len(collect()); n < 8 || n > 32 {
		t.Errorf("%d of 40 passed a drop of one half", n)
	}
	a.SetFaults(LinkFaults{DupOut: 1})
	send(10)
	if n := len(collect()); n != 20 {
		t.Errorf("10 packets doubled are %d", n)
	}
	a.SetFaults(LinkFaults{CorruptOut: 1})
	send(40)
	if ps := collect(); len(ps) != 40 || intact(ps) > 25 {
		t.Errorf("%d packets, %d untouched behind their first byte", len(ps), intact(ps))
	}
	b.SetFaults(LinkFaults{DropIn: 0.5})
	send(1)
	if b.SetFaults(LinkFaults{BlockIn: true}); !b.blocked() {
		t.Error("a blocked link takes handshakes")
	}
	b.SetFaults(LinkFaults{})
	if b.blocked() {
		t.Error("a healed link takes no handshakes")
	}
}

func TestDelayKeepsOrderAndIsBounded(t *testing.T) {
	na, nb := pairOf(t)
	got := make(sink, 1024)
	a, _ := wires(t, na.cfg, nb.cfg, make(sink), got)
	const delay = 3 * time.Second // longer than a busy machine takes to send all packets
	a.SetFaults(LinkFaults{DelayOut: delay})
	start := time.Now()
	const sent = maxDelayed + 100
	for i := range sent {
		if err := a.Send([]byte{byte(i), byte(i >> 8)}); err != nil {
			t.Fatal(err)
		}
	}
	dropped := a.Stats().FaultedOut
	if dropped < 90 || dropped > 100 {
		t.Errorf("%d of %d packets dropped, want some 99", dropped, sent)
	}
	last := -1
	for range 20 { // fits the socket's buffer
		select {
		case p := <-got:
			if n := int(p[0]) | int(p[1])<<8; n <= last {
				t.Errorf("%d after %d", n, last)
			} else {
				last = n
			}
		case <-time.After(bound):
			t.Fatal("delayed packets did not arrive")
		}
	}
	if d := time.Since(start); d < delay {
		t.Errorf("the first came after %v", d)
	}
}
