package local

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// announcePath accepts restart notices at the host half's socket. Host halves of earlier versions answer 404.
const announcePath = "/announce"

// commitWithin bounds the wait for the commit of a notice. Callers have tighter bounds, and the server ends a request after 10 s.
const commitWithin = time.Minute

// AnnounceRestart has the host half of a state directory announce a restart to the supervisors, or end the notice. It returns when the
// supervisors have committed the restart. After an error they may still receive the notice. ErrNotRunning is in the chain of the error
// if no host half listens, or if it ends before it answers.
func AnnounceRestart(ctx context.Context, stateDir string, n fault.RestartNotice) error {
	q := url.Values{"half": {n.Half.String()}, "within": {n.Within.String()}}
	if _, err := askHost(ctx, commitWithin, stateDir, http.MethodPost, announcePath+"?"+q.Encode()); err != nil {
		return fmt.Errorf("announce a restart of the %s half: %w", n.Half, err)
	}
	return nil
}

// stopPath accepts stop notices at the host half's socket. Host halves of earlier versions answer 404.
const stopPath = "/announce-stop"

// AnnounceStop has the host half of a state directory announce a stop of the node to the supervisors, or its end. It returns
// when the supervisors have committed the stop. After an error they may still receive the notice.
func AnnounceStop(ctx context.Context, stateDir string, s fault.Stop) error {
	q := url.Values{"notice": {s.String()}}
	if _, err := askHost(ctx, commitWithin, stateDir, http.MethodPost, stopPath+"?"+q.Encode()); err != nil {
		return fmt.Errorf("announce a stop of the node (%s): %w", s, err)
	}
	return nil
}

// parseNotice reads the parameters of announcePath.
func parseNotice(q url.Values) (n fault.RestartNotice, err error) {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if q.Get("half") == h.String() {
			n.Half = h
		}
	}
	if n.Half == 0 {
		return n, fmt.Errorf("half: given %.20q: want host or dnp", q.Get("half"))
	}
	n.Within, err = time.ParseDuration(q.Get("within"))
	if err != nil || n.Within < 0 || n.Within > fault.MaxRestart {
		return n, fmt.Errorf("within: given %.20q: want 0s to %s", q.Get("within"), fault.MaxRestart)
	}
	return n, nil
}
