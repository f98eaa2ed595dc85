package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// Accounts asks an API server about the tokens of service accounts, and about nodes. It changes nothing.
type Accounts struct {
	c        *client
	audience string
	users    []string // names of the accounts, as the API server gives them
}

// Requests of Accounts.
const (
	accountsTimeout = 5 * time.Second
	accountsQPS     = 50
	accountsBurst   = 100
	podNameKey      = "authentication.kubernetes.io/pod-name"
	nodeNameKey     = "authentication.kubernetes.io/node-name"
	userPrefix      = "system:serviceaccount:"
)

// ErrToken means that a token is not good, or not of one of the accounts.
var ErrToken = errors.New("service account token")

// NewAccounts returns a client for a kubeconfig file, or with "" for the service account of this pod. It accepts tokens that
// were made for the audience, of the accounts "NAMESPACE/NAME".
func NewAccounts(kubeconfig, audience string, accounts []string) (*Accounts, error) {
	cfg := Config{Kubeconfig: kubeconfig}.Filled()
	cfg.QPS, cfg.Burst = accountsQPS, accountsBurst
	c, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	c.timeout = accountsTimeout
	a := &Accounts{c: c, audience: audience}
	for _, name := range accounts {
		a.users = append(a.users, userPrefix+strings.Replace(name, "/", ":", 1))
	}
	return a, nil
}

// NodeOf returns the name of the node whose pod a token is bound to. The error wraps ErrToken if the token is refused, and
// not if the API server does not answer.
func (a *Accounts) NodeOf(ctx context.Context, token string) (string, error) {
	body, err := json.Marshal(authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{a.audience}},
	})
	if err != nil {
		return "", fmt.Errorf("ask about a token: %w", err)
	}
	var review authenticationv1.TokenReview
	r := a.c.api.Post().AbsPath("/apis/authentication.k8s.io/v1/tokenreviews").Body(body)
	if err := a.c.read(ctx, a.c.all, r, &review); err != nil {
		return "", fmt.Errorf("ask the API server about a token: %w", err)
	}
	refused := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("%w: %s", ErrToken, fmt.Sprintf(format, args...))
	}
	st := review.Status
	switch {
	case !st.Authenticated && st.Error != "":
		return refused("the API server refuses it: %.200s", st.Error)
	case !st.Authenticated:
		return refused("the API server refuses it")
	case !slices.Contains(st.Audiences, a.audience):
		return refused("is for %q: want audience %s", st.Audiences, a.audience)
	case !slices.Contains(a.users, st.User.Username):
		return refused("is of %.200q: want one of %s", st.User.Username, strings.Join(a.users, ", "))
	}
	nodes := st.User.Extra[nodeNameKey]
	if len(nodes) != 1 || nodes[0] == "" || len(st.User.Extra[podNameKey]) != 1 {
		return refused("names no node: want the token of a pod's projected volume, and Kubernetes 1.32 or later")
	}
	return nodes[0], nil
}

// Labels returns the labels of a node.
func (a *Accounts) Labels(ctx context.Context, node string) (map[string]string, error) {
	n, err := a.c.node(ctx, a.c.all, node)
	if err != nil {
		return nil, fmt.Errorf("read node %s from the API server: %w", node, err)
	}
	return n.Labels, nil
}

// Nodes returns the names of all nodes. It reads them page by page: the answer with all nodes of a large cluster has many megabytes.
func (a *Accounts) Nodes(ctx context.Context) (map[string]bool, error) {
	out := make(map[string]bool)
	_, err := a.c.listNodes(ctx, a.c.all, "", func(nodes []corev1.Node, _, _ bool) {
		for i := range nodes {
			out[strings.Clone(nodes[i].Name)] = true // not the rest of the page
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	return out, nil
}
