package hostcore

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// recorded is a challenge as a supervisor signed it, which came from an address.
func recorded(nonce, term uint64, issued time.Duration, from string) Received {
	return Received{Path: fault.PathDirect, From: netip.MustParseAddrPort(from), Opened: servicenet.Opened{
		Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
			Nonce: binary.BigEndian.AppendUint64(make([]byte, 8), nonce), Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, ReplyTo: "127.0.0.1:7000",
			Term: term, IssuedNs: int64(issued),
		}}},
	}}
}

// answers counts a machine's answers, and those among them that go to an address instead of a configured supervisor.
func answers(sends []Send) (all, toAddress int) {
	for _, s := range sends {
		if s.Answer != nil {
			all++
			if s.Addr.IsValid() {
				toAddress++
			}
		}
	}
	return all, toAddress
}

// TestRecordedChallengesMakeNoReflector replays challenges in the name of a victim. Old challenges cause no packet to
// the victim, and a new one at most as many as a supervisor may send.
func TestRecordedChallengesMakeNoReflector(t *testing.T) {
	const victim = "192.0.2.66:53"
	w := newTested(t, testing2s)
	w.step(Supervisors{Targets: []string{"sup-0"}})
	send := func(ev Received) (all, toAddress int) {
		return answers(w.m.Step(w.now, ev).Send)
	}
	if all, to := send(recorded(1, 7, time.Minute, "192.0.2.1:7000")); all == 0 || to == 0 {
		t.Fatalf("a new challenge has %d answers, %d to where it came from", all, to)
	}
	for name, ev := range map[string]Received{
		"of an earlier leader":   recorded(2, 6, time.Hour, victim),
		"older than its life":    recorded(3, 7, time.Minute-challengeLife-1, victim),
		"of an earlier version":  recorded(4, 0, 0, victim),
		"of that leader's start": recorded(5, 7, 0, victim),
	} {
		if all, to := send(ev); all != 1 || to != 0 {
			t.Errorf("%s: %d answers, %d of them to an address: want one, to the configured supervisor", name, all, to)
		}
	}
	sum := 0
	for range 10_000 {
		all, _ := send(recorded(3, 7, 0, victim))
		sum += all
	}
	if sum > staleBurst {
		t.Errorf("10,000 copies of an old challenge at once have %d answers, want at most %d", sum, staleBurst)
	}
	copies := 0
	for range 10_000 {
		_, to := send(recorded(6, 7, time.Minute, victim))
		copies += to
	}
	if copies > 2*answersMost { // each goes to where it came from, and to where the supervisor wants it
		t.Errorf("10,000 copies of a new challenge have %d answers to addresses, want at most %d", copies, 2*answersMost)
	}
	if all, to := send(recorded(7, 7, time.Minute-challengeLife/2, "192.0.2.1:7000")); all == 0 || to == 0 {
		t.Error("a challenge that was overtaken has no answer")
	}
	if all, to := send(recorded(8, 8, time.Second, "192.0.2.1:7000")); all == 0 || to == 0 {
		t.Error("the challenge of a new leader whose clock is behind has no answer")
	}
}

// TestChallengesWithoutTermAreAnswered: a supervisor of an earlier version does not send its term.
func TestChallengesWithoutTermAreAnswered(t *testing.T) {
	w := newTested(t, testing2s)
	for n := range uint64(1000) {
		if all, to := answers(w.m.Step(w.now, recorded(n, 0, 0, "192.0.2.1:7000")).Send); all == 0 || to == 0 {
			t.Fatalf("challenge %d has %d answers, %d to where it came from", n, all, to)
		}
	}
	if n := len(w.m.asked.latest) + len(w.m.asked.older); n > 2*noncesMost {
		t.Errorf("%d nonces are remembered", n)
	}
}
