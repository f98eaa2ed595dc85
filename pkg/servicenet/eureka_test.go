package servicenet

import (
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func TestEurekaMessageIsBounded(t *testing.T) {
	for _, tc := range []struct {
		change func(*lofamov1.JobEureka)
		names  string
	}{
		{func(e *lofamov1.JobEureka) { e.Body = make([]byte, 513) }, "eureka.body: given 513 bytes: want at most 512"},
		{func(e *lofamov1.JobEureka) { e.Priority = 4 }, "eureka.priority: given 4: want 0 to 3"},
		{func(e *lofamov1.JobEureka) { e.Epoch = 0 }, "eureka.epoch: given 0"},
		{func(e *lofamov1.JobEureka) { e.Number = 0 }, "eureka.number: given 0"},
		{func(e *lofamov1.JobEureka) { e.Node = "" }, "eureka.node"},
		{func(e *lofamov1.JobEureka) { e.Job = "-x" }, `eureka.job: given "-x": want 1 to 63 of a-z`},
		{func(e *lofamov1.JobEureka) { e.Job = strings.Repeat("x", 64) }, "eureka.job"},
		{func(e *lofamov1.JobEureka) { e.Topic = "" }, `eureka.topic: given "": want 1 to 32`},
		{func(e *lofamov1.JobEureka) { e.Topic = strings.Repeat("x", 33) }, "eureka.topic"},
	} {
		m := eureka()
		tc.change(m.GetEureka())
		_, err := Seal(m, nodeSigner)
		if RefusalOf(err) != RefusedField || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%v: want one that has %q", err, tc.names)
		}
	}
}

// A host half alone may say it, in its own name: not the DNP half beside it, nor a supervisor.
func TestEurekaComesFromHostHalf(t *testing.T) {
	for _, s := range []fakeSigner{supSigner, relaySigner} {
		if o, err := Open(seal(t, eureka(), s), fakeVerifier{}); err == nil {
			t.Errorf("%s may raise it for n0-0-1", o.Name)
		}
	}
	o, err := Open(seal(t, eureka(), nodeSigner), fakeVerifier{})
	if err != nil || o.Msg.GetEureka().GetUid() != 1000 || o.Name != "n0-0-1/host" {
		t.Errorf("%s, %v, %v", o.Name, o.Msg, err)
	}
}

// The longest names and body make no envelope longer than the limit of an express broadcast, with a certificate of
// the usual size.
func TestLargestEurekaFitsBroadcast(t *testing.T) {
	m := eureka()
	m.GetEureka().Job, m.GetEureka().Topic = strings.Repeat("j", MaxJob), strings.Repeat("t", MaxTopic)
	m.GetEureka().Body = make([]byte, MaxEurekaBody)
	b, err := Seal(m, fakeSigner{cert: make([]byte, 400)})
	if err != nil || len(b) > 1200 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
