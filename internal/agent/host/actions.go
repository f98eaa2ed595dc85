package host

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// toAct passes a supervisor's order to the action runner of this node. The host half alone informs jobs, because it
// holds the signed order that all other nodes verify.
func (h *hostHalf) toAct(a hostcore.Act) {
	h.acting.Take(half.ActionRequest{
		Order: a.Order, Apart: h.window.Apart(),
		Made: func(ctx context.Context) actions.Result {
			links, err := h.local.Announce(ctx, a.Order, a.By(), a.Envelope)
			switch {
			case status.Code(err) == codes.Unavailable: // perhaps the DNP half has informed others
				return actions.Result{State: actions.NotKnown, Detail: status.Convert(err).Message()}
			case err != nil:
				return actions.Result{State: actions.Unchanged, Detail: status.Convert(err).Message()}
			}
			return actions.Result{State: actions.Done, Detail: fmt.Sprintf("raised in the torus over %d links", links)}
		},
		Answer: func(st *lofamov1.ActStatus) { h.step(hostcore.Acted{Act: a, Status: st}) },
	})
}
