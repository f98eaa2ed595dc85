package torus

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A resumed session never seals a number that was sealed before, because GMAC then gives its key away.
func TestResumedSessionUsesNoNumberTwice(t *testing.T) {
	a, b := pair(7, 7)
	f := sample()
	f.Session, f.Seq = 7, 41
	encode(t, f, a)
	tx, rx := a.Keys()
	again := ResumeSession(7, tx, rx, f.Seq)
	if _, err := f.Append(nil, again); !errors.Is(err, ErrSequenceReused) {
		t.Errorf("number 41 again: %v", err)
	}
	f.Seq++
	if _, err := Decode(encode(t, f, again), MaxFrame, b); err != nil {
		t.Errorf("number 42: %v", err)
	}
	if s := fmt.Sprintf("%v %+v", again, again); strings.Contains(s, fmt.Sprint(tx)) || s != "session 00000007 session 00000007" {
		t.Errorf("printed as %s", s)
	}
}

// Bytes that are no snapshot, as from a copy that was never written, give a cold start.
func TestResumeFromNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	if got, want := ResumeLink(testConfig(), now, LinkSnapshot{}).Snapshot(), NewLink(testConfig(), now).Snapshot(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Forget drops the judged state of a link and keeps all the numbers.
func TestForgetDropsStateAndKeepsNumbers(t *testing.T) {
	s := LinkSnapshot{
		TxSession: 5, TxSeq: 8, Acked: 7, Started: true, RxSession: 5, PeerEpoch: 3, High: 9, Replay: 1,
		Rx: LinkBroken, Tx: LinkBroken, Silent: true, HeardAge: time.Second, Peer: PeerStatus{Host: 2, HostDead: true},
	}
	now := time.Unix(1000, 0)
	l := ResumeLink(testConfig(), now, s.Forget())
	if f := l.NextFrame(Status{}); l.Detail() != NewLink(testConfig(), now).Detail() || f.Seq != 9 || f.Ack != 9 || f.Session != 5 {
		t.Errorf("%s, frame %+v", l.Detail(), f)
	}
}

// A snapshot of a resumed machine equals the one that it resumed from, with any content.
func TestSnapshotOfResumedLink(t *testing.T) {
	for _, s := range []LinkSnapshot{
		{TxSession: 5, TxSeq: 1 << 40, Acked: 1<<40 - 1, Started: true, RxSession: 5, PeerEpoch: 3, High: 1 << 50, Replay: 0xff01,
			Rx: LinkNormal, Tx: LinkNormal},
		{TxSession: 5, Awaiting: true, Next: 5, Started: true, RxSession: 4, PeerEpoch: 3, High: 9, Replay: 1, Rx: LinkBroken,
			Tx: LinkUnknown, Silent: true, HeardAge: time.Second},
		{Rx: LinkUnknown, Tx: LinkUnknown},
		{TxSession: 1, TxSeq: 7, Rx: LinkSick, Tx: LinkBroken, Peer: PeerStatus{DNP: 1, Host: 2, HostDead: true, Epoch: 8}},
	} {
		if got := ResumeLink(testConfig(), time.Unix(1000, 0), s).Snapshot(); got != s {
			t.Errorf("%+v, want %+v", got, s)
		}
	}
}
