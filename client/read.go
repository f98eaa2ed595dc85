package client

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// aged is an answer that carries its freshness.
type aged interface {
	GetCluster() *lofamov1.ClusterInfo
}

// fresh is call, but takes the answer of a replica without a leader only if no other replica has a fresh one.
func fresh[T aged](ctx context.Context, c *Client, ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	return freshBy(ctx, c, func(answer T) bool { return answer.GetCluster().GetStale() }, ask)
}

// list asks for one page: the first of any replica, the others of the replica that had the first.
func list[T aged](ctx context.Context, c *Client, next string,
	ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	if next != "" {
		return call(ctx, c, ask)
	}
	return fresh(ctx, c, ask)
}

// ListNodes returns one page of nodes.
func (c *Client) ListNodes(ctx context.Context, req *lofamov1.ListNodesRequest) (*lofamov1.ListNodesResponse, error) {
	return list(ctx, c, req.GetContinue(), func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListNodesResponse, error) {
		return s.ListNodes(ctx, req)
	})
}

// AllNodes fetches all pages of ListNodes, of chunk nodes each (0: one page), and joins them. All are of one revision.
// If the supervisors no longer keep that revision, it fetches everything again in one page.
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

// GetNode returns one node with its components, registers and evidence. node is an id or coordinates, such as "n1-0-1"
// or "1,0,1".
func (c *Client) GetNode(ctx context.Context, node string) (*lofamov1.Node, error) {
	return freshBy(ctx, c, (*lofamov1.Node).GetStale, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.Node, error) {
		return s.GetNode(ctx, &lofamov1.GetNodeRequest{Node: node})
	})
}

// ListLinks returns one page of link ends.
func (c *Client) ListLinks(ctx context.Context, req *lofamov1.ListLinksRequest) (*lofamov1.ListLinksResponse, error) {
	return list(ctx, c, req.GetContinue(), func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListLinksResponse, error) {
		return s.ListLinks(ctx, req)
	})
}

// AllLinks fetches all pages of ListLinks, like AllNodes.
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

// pages fetches one page after the other and joins them to the first. If the pages expire it starts again, once, with
// one large page.
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

// ListGroups returns the group faults.
func (c *Client) ListGroups(ctx context.Context, req *lofamov1.ListGroupsRequest) (*lofamov1.ListGroupsResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListGroupsResponse, error) {
		return s.ListGroups(ctx, req)
	})
}

// GetSummary counts nodes and links by state.
func (c *Client) GetSummary(ctx context.Context, req *lofamov1.GetSummaryRequest) (*lofamov1.GetSummaryResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.GetSummaryResponse, error) {
		return s.GetSummary(ctx, req)
	})
}

// Explain returns the rule, the evidence and the conditions behind the state of a component or a group.
func (c *Client) Explain(ctx context.Context, req *lofamov1.ExplainRequest) (*lofamov1.ExplainResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ExplainResponse, error) {
		return s.Explain(ctx, req)
	})
}

// GetHistory returns the past states of a node, a component or a group.
func (c *Client) GetHistory(ctx context.Context, req *lofamov1.GetHistoryRequest) (*lofamov1.GetHistoryResponse, error) {
	return fresh(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.GetHistoryResponse, error) {
		return s.GetHistory(ctx, req)
	})
}

// AllEvents fetches all pages of ListEvents, each of at most Limit events, and joins them.
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
