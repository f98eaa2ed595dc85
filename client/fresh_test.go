package client

import (
	"context"
	"crypto/tls"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// agedAnswer is an answer; read is called when its freshness is read.
type agedAnswer struct {
	stale bool
	read  func()
}

func (a *agedAnswer) GetCluster() *lofamov1.ClusterInfo {
	if a.read != nil {
		a.read()
	}
	return &lofamov1.ClusterInfo{Stale: a.stale}
}

// TestFreshAnswerIsSoughtAmongConcurrentCalls: the first supervisor's answer is stale. Before the client asks the second one, another call
// learns that the second one answers.
func TestFreshAnswerIsSoughtAmongConcurrentCalls(t *testing.T) {
	c, err := New(Config{Targets: []string{"127.0.0.1:1", "127.0.0.1:2"}, TLS: &tls.Config{MinVersion: tls.VersionTLS13}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answers := []*agedAnswer{{stale: true, read: func() { c.answered(1) }}, {}}
	answer, err := fresh(t.Context(), c, func(context.Context, lofamov1.FaultSupervisorClient) (*agedAnswer, error) {
		next := answers[0]
		answers = answers[1:]
		return next, nil
	})
	if err != nil || answer.stale || c.conns[1] == nil {
		t.Errorf("%v, stale %t, second supervisor asked %t: want its answer", err, answer.stale, c.conns[1] != nil)
	}
}
