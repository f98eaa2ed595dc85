package host

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/agent/acts"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// toAct passes on what a supervisor has the node do. Of this half's own is alone to tell jobs: it has the signed word that all others verify.
func (h *hostHalf) toAct(a hostcore.Act) {
	h.acting.Take(half.ActionRequest{
		Order: a.Order,
		Made: func(ctx context.Context) acts.Result {
			links, err := h.local.Announce(ctx, a.Order, a.By(), a.Envelope)
			switch {
			case status.Code(err) == codes.Unavailable: // perhaps the DNP half has told others
				return acts.Result{State: acts.NotKnown, Detail: status.Convert(err).Message()}
			case err != nil:
				return acts.Result{State: acts.Unchanged, Detail: status.Convert(err).Message()}
			}
			return acts.Result{State: acts.Done, Detail: fmt.Sprintf("raised in the torus over %d links", links)}
		},
		Answer: func(st *lofamov1.ActStatus) { h.step(hostcore.Acted{Act: a, Status: st}) },
	})
}
