package kubernetes

import (
	"cmp"
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

	"github.com/lofamo/lofamo/internal/executor"
)

// nodeFollower receives the nodes of Kubernetes, from one goroutine. It must not keep references to the objects.
type nodeFollower interface {
	// page takes the next nodes of a list. first begins a new list, and last ends it: then it replaces all nodes.
	page(nodes []corev1.Node, first, last bool)
	// changed sets one node, or removes it.
	changed(n *corev1.Node, gone bool)
}

// Limits of following nodes.
const (
	nodesPage   = 500              // nodes in one answer
	watchSpan   = 5 * time.Minute  // of one watch, after which the API server ends it
	watchSlack  = 30 * time.Second // after which this side ends it, should the API server not
	watchLeast  = time.Second      // a watch that ends sooner, without an event, has failed
	followFirst = 500 * time.Millisecond
	followMost  = 30 * time.Second
)

// followNodes lists all nodes and watches them, until ctx ends. After a failure it lists them again, with growing pauses.
func (c *client) followNodes(ctx context.Context, to nodeFollower, log *slog.Logger) {
	said, pause := "", followFirst
	for {
		begin := time.Now()
		version, err := c.listNodes(ctx, c.follow, "", to.page)
		for err == nil {
			was, at := version, time.Now()
			if version, err = c.watchNodes(ctx, was, to); err == nil && version == was && time.Since(at) < watchLeast {
				err = errors.New("watch nodes: the API server, or a proxy, ends every watch at once")
			}
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
		if !executor.Wait(ctx, pause/2+rand.N(pause/2)) {
			return
		}
	}
}

// listNodes passes the nodes that a label selector selects on, page by page as in nodeFollower, and returns the version to watch from. The
// selector "" selects all nodes.
func (c *client) listNodes(ctx context.Context, p *pace, selector string, page func(nodes []corev1.Node, first, last bool)) (version string,
	err error) {
	for next, first := "", true; ; first = false {
		l := &corev1.NodeList{}
		r := c.api.Get().Resource("nodes").Param("limit", fmt.Sprint(nodesPage))
		if selector != "" {
			r = r.Param("labelSelector", selector)
		}
		if next != "" {
			r = r.Param("continue", next)
		}
		if err := c.read(ctx, p, r, l); err != nil {
			return "", fmt.Errorf("list nodes: %w", err)
		}
		next = l.Continue
		page(l.Items, first, next == "")
		if next == "" {
			return l.ResourceVersion, nil
		}
	}
}

// watchNodes passes changes on until the API server ends the watch, and returns the version to continue from.
func (c *client) watchNodes(ctx context.Context, version string, to nodeFollower) (string, error) {
	if err := c.follow.waitToRead(ctx); err != nil {
		return version, unpaced{err}
	}
	one, cancel := context.WithTimeout(ctx, c.watch)
	defer cancel()
	established := time.AfterFunc(c.timeout, cancel)
	w, err := c.api.Get().Resource("nodes").Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", fmt.Sprint(int(watchSpan.Seconds()))).MaxRetries(0).Watch(one)
	if !established.Stop() && ctx.Err() == nil {
		if err == nil {
			w.Stop()
		}
		return version, fmt.Errorf("watch nodes: the API server has not answered within %s", c.timeout)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return version, fmt.Errorf("watch nodes: %w", err)
	}
	if err != nil {
		return version, nil
	}
	defer w.Stop()
	late := fmt.Errorf("watch nodes: the API server has not ended the watch within %s", c.watch)
	for ev := range w.ResultChan() {
		n, is := ev.Object.(*corev1.Node)
		switch {
		case ev.Type == watch.Error && one.Err() != nil:
			return version, cmp.Or(ctx.Err(), late)
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
	if one.Err() != nil {
		return version, cmp.Or(ctx.Err(), late)
	}
	return version, nil
}
