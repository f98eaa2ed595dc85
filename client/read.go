package client

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// clustered is an answer that says how fresh it is.
type clustered interface {
	GetCluster() *lofamov1.ClusterInfo
}

// fresh is call, but an answer from a replica that reaches no leader is taken only when no other has a
// better one.
func fresh[T clustered](ctx context.Context, c *Client, ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	answer, err := call(ctx, c, ask)
	if err != nil || !answer.GetCluster().GetStale() {
		return answer, err
	}
	stale := c.start()
	for i := range c.cfg.Targets {
		if i == stale {
			continue
		}
		if better, err := try(ctx, c, i, ask); err == nil && !better.GetCluster().GetStale() {
			c.answered(i)
			return better, nil
		}
	}
	return answer, nil
}

// ListNodes returns nodes.
func (c *Client) ListNodes(ctx context.Context, req *lofamov1.ListNodesRequest) (*lofamov1.ListNodesResponse, error) {
	ask := func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListNodesResponse, error) {
		return s.ListNodes(ctx, req)
	}
	if req.GetContinue() != "" { // whoever has the first page has the others
		return call(ctx, c, ask)
	}
	return fresh(ctx, c, ask)
}

// AllNodes is ListNodes in pages of so many nodes (0: as one), put together again. Should the supervisors no
// longer know what the next page is of, it begins again, with one answer for all.
func (c *Client) AllNodes(ctx context.Context, req *lofamov1.ListNodesRequest, chunk uint32) (*lofamov1.ListNodesResponse, error) {
	return pages(chunk,
		func(limit uint32, next string) (*lofamov1.ListNodesResponse, error) {
			req.Limit, req.Continue = limit, next
			return c.ListNodes(ctx, req)
		},
		func(all, page *lofamov1.ListNodesResponse) {
			all.Nodes = append(all.Nodes, page.GetNodes()...)
			all.Continue, all.Remaining = "", 0
		})
}

// ListLinks returns link ends.
func (c *Client) ListLinks(ctx context.Context, req *lofamov1.ListLinksRequest) (*lofamov1.ListLinksResponse, error) {
	ask := func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListLinksResponse, error) {
		return s.ListLinks(ctx, req)
	}
	if req.GetContinue() != "" {
		return call(ctx, c, ask)
	}
	return fresh(ctx, c, ask)
}

// AllLinks is ListLinks as AllNodes is ListNodes.
func (c *Client) AllLinks(ctx context.Context, req *lofamov1.ListLinksRequest, chunk uint32) (*lofamov1.ListLinksResponse, error) {
	return pages(chunk,
		func(limit uint32, next string) (*lofamov1.ListLinksResponse, error) {
			req.Limit, req.Continue = limit, next
			return c.ListLinks(ctx, req)
		},
		func(all, page *lofamov1.ListLinksResponse) {
			all.Links, all.Continue = append(all.Links, page.GetLinks()...), ""
		})
}

// paged is a page of a list.
type paged interface{ GetContinue() string }

// pages asks for one page after the other and joins them to the first; once, when the pages are no longer known,
// from the beginning and in as few as can be.
func pages[T paged](chunk uint32, ask func(limit uint32, next string) (T, error), join func(all, page T)) (T, error) {
	all, err := ask(chunk, "")
	if err != nil {
		return all, err
	}
	again := false
	for next := all.GetContinue(); next != ""; {
		page, err := ask(chunk, next)
		switch {
		case status.Code(err) == codes.OutOfRange && !again:
			again, chunk = true, 0
			if all, err = ask(0, ""); err != nil {
				return all, err
			}
			next = all.GetContinue()
			continue
		case err != nil:
			return all, err
		}
		next = page.GetContinue()
		join(all, page)
	}
	return all, nil
}

// ListGroups returns the group faults there are.
func (c *Client) ListGroups(ctx context.Context, req *lofamov1.ListGroupsRequest) (*lofamov1.ListGroupsResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListGroupsResponse, error) {
		return s.ListGroups(ctx, req)
	})
}

// GetSummary counts.
func (c *Client) GetSummary(ctx context.Context, req *lofamov1.GetSummaryRequest) (*lofamov1.GetSummaryResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.GetSummaryResponse, error) {
		return s.GetSummary(ctx, req)
	})
}

// Explain says why a component has its state.
func (c *Client) Explain(ctx context.Context, req *lofamov1.ExplainRequest) (*lofamov1.ExplainResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ExplainResponse, error) {
		return s.Explain(ctx, req)
	})
}

// GetHistory returns how something came to be what it is.
func (c *Client) GetHistory(ctx context.Context, req *lofamov1.GetHistoryRequest) (*lofamov1.GetHistoryResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.GetHistoryResponse, error) {
		return s.GetHistory(ctx, req)
	})
}

// AllEvents is ListEvents with all pages that follow the first one, each of as many events as the request's limit.
func (c *Client) AllEvents(ctx context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	return pages(req.GetLimit(),
		func(limit uint32, next string) (*lofamov1.ListEventsResponse, error) {
			req.Limit, req.Continue = limit, next
			return c.ListEvents(ctx, req)
		},
		func(all, page *lofamov1.ListEventsResponse) {
			all.Events = append(all.Events, page.GetEvents()...)
			all.Revision, all.Continue = page.GetRevision(), ""
		})
}
