package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// nodeFollower receives the nodes of Kubernetes, from one goroutine. It must not keep references to the objects.
type nodeFollower interface {
	// reset replaces all nodes.
	reset(all []corev1.Node)
	// changed sets one node, or removes it.
	changed(n *corev1.Node, gone bool)
}

// Limits of following nodes.
const (
	nodesPage   = 500             // nodes in one answer
	watchSpan   = 5 * time.Minute // of one watch, after which the API server ends it
	followFirst = 500 * time.Millisecond
	followMost  = 30 * time.Second
)

// followNodes lists all nodes and watches them, until ctx ends. After a failure it lists them again, with growing pauses.
func (c *client) followNodes(ctx context.Context, to nodeFollower, log *slog.Logger) {
	said, pause := "", followFirst
	for {
		begin := time.Now()
		version, err := c.listNodes(ctx, to)
		for err == nil {
			version, err = c.watchNodes(ctx, version, to)
		}
		if ctx.Err() != nil {
			return
		}
		if err.Error() != said { // the same reason once
			said = err.Error()
			log.Warn("cannot follow the nodes of Kubernetes: trying again", "err", err)
		}
		if pause = min(2*pause, followMost); time.Since(begin) > followMost {
			pause, said = followFirst, ""
		}
		if !wait(ctx, pause/2+rand.N(pause/2)) {
			return
		}
	}
}

// listNodes passes all nodes on, and returns the version to watch from.
func (c *client) listNodes(ctx context.Context, to nodeFollower) (version string, err error) {
	var all []corev1.Node
	next := ""
	for {
		l := &corev1.NodeList{}
		r := c.api.Get().Resource("nodes").Param("limit", fmt.Sprint(nodesPage))
		if next != "" {
			r = r.Param("continue", next)
		}
		if err := c.read(ctx, c.follow, r, l); err != nil {
			return "", fmt.Errorf("list nodes: %w", err)
		}
		all = append(all, l.Items...)
		if next = l.Continue; next == "" {
			to.reset(all)
			return l.ResourceVersion, nil
		}
	}
}

// watchNodes passes changes on until the API server ends the watch, and returns the version to continue from.
func (c *client) watchNodes(ctx context.Context, version string, to nodeFollower) (string, error) {
	if err := c.follow.waitToRead(ctx); err != nil {
		return version, unpaced{err}
	}
	w, err := c.api.Get().Resource("nodes").Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", fmt.Sprint(int(watchSpan.Seconds()))).MaxRetries(0).Watch(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return version, fmt.Errorf("watch nodes: %w", err)
	}
	if err != nil {
		return version, nil
	}
	defer w.Stop()
	for ev := range w.ResultChan() {
		n, is := ev.Object.(*corev1.Node)
		switch {
		case ev.Type == watch.Error:
			return version, fmt.Errorf("watch nodes: %w", apierrors.FromObject(ev.Object))
		case !is:
			continue
		case ev.Type == watch.Added, ev.Type == watch.Modified:
			to.changed(n, false)
		case ev.Type == watch.Deleted:
			to.changed(n, true)
		}
		version = n.ResourceVersion
	}
	return version, ctx.Err()
}
