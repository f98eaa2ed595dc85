package client

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// AddNotifyTarget adds a target of notifications, with the policies that notify it.
func (c *Client) AddNotifyTarget(ctx context.Context, req *lofamov1.AddNotifyTargetRequest) (*lofamov1.AddNotifyTargetResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.AddNotifyTargetResponse, error) {
		return s.AddNotifyTarget(ctx, req)
	})
}

// ListNotifyTargets returns the targets of notifications.
func (c *Client) ListNotifyTargets(ctx context.Context) (*lofamov1.ListNotifyTargetsResponse, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ListNotifyTargetsResponse, error) {
		return s.ListNotifyTargets(ctx, &lofamov1.ListNotifyTargetsRequest{})
	})
}

// TestNotifyTarget sends a test message to a target.
func (c *Client) TestNotifyTarget(ctx context.Context, name string) (*lofamov1.TestNotifyTargetResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.TestNotifyTargetResponse, error) {
		return s.TestNotifyTarget(ctx, &lofamov1.TestNotifyTargetRequest{Name: name})
	})
}

// RemoveNotifyTarget removes a target with the policies that AddNotifyTarget made for it.
func (c *Client) RemoveNotifyTarget(ctx context.Context, name string) (*lofamov1.RemoveNotifyTargetResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.RemoveNotifyTargetResponse, error) {
		return s.RemoveNotifyTarget(ctx, &lofamov1.RemoveNotifyTargetRequest{Name: name})
	})
}
