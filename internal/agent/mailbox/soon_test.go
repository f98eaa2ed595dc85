package mailbox

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// More probes than have room at once come all, in order, when the other half reads; and none for which there was no room in time.
func TestProbesArriveInOrderWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	host, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	dnp.soon.life = time.Hour // however busy this machine is
	const probes = 60
	for i := range probes {
		dnp.SendSoon(Message{Type: Test, Payload: []byte{byte(i), 70: 0}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next := 0
	err := host.Run(ctx, func(m Message) {
		if int(m.Payload[0]) != next {
			t.Errorf("number %d came, want %d", m.Payload[0], next)
		}
		if next++; next == probes {
			cancel()
		}
	})
	if err != nil || next != probes {
		t.Errorf("%d of %d came: %v", next, probes, err)
	}
	dnp.soon.mu.Lock()
	defer dnp.soon.mu.Unlock()
	if n := len(dnp.soon.waiting); n > 0 {
		t.Errorf("%d wait still", n)
	}
}

// Without a reader, waiting messages are bounded, and dropped when their time is over.
func TestProbeWithoutRoomIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	_, dnp := mustOpen(t, dir, fault.HalfHost), mustOpen(t, dir, fault.HalfDNP)
	dnp.soon.life = time.Nanosecond
	for range 2 * maxSoon {
		dnp.SendSoon(Message{Type: Test, Payload: make([]byte, 71)})
	}
	dnp.sendWaiting()
	dnp.soon.mu.Lock()
	n := len(dnp.soon.waiting)
	dnp.soon.mu.Unlock()
	if n > 0 {
		t.Errorf("%d wait, though their time is over", n)
	}
	dnp.soon.life = time.Hour
	for range 2 * maxSoon {
		dnp.SendSoon(Message{Type: Test, Payload: make([]byte, 71)})
	}
	dnp.soon.mu.Lock()
	defer dnp.soon.mu.Unlock()
	if n := len(dnp.soon.waiting); n != maxSoon {
		t.Errorf("%d wait, want %d", n, maxSoon)
	}
	if s := dnp.Stats(); s.DroppedFull > 0 {
		t.Errorf("%d counted as dropped: the half would call itself sick", s.DroppedFull)
	}
}
