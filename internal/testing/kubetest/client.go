package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sigs.k8s.io/yaml"
)

// Client makes HTTP requests to the API server.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// Media types of patches.
const (
	MergePatch = "application/merge-patch+json"
	Apply      = "application/apply-patch+yaml"
)

// StatusError is the API server's refusal.
type StatusError struct {
	Code int
	Body string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Code, e.Body) }

func (c *Client) send(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	if contentType == "" {
		contentType = "application/json"
	}
	r.Header.Set("Content-Type", contentType)
	return c.http.Do(r)
}

// Do sends one request, of JSON unless contentType is set, and returns the body of the answer.
func (c *Client) Do(method, path, contentType string, body []byte) ([]byte, error) {
	res, err := c.send(context.Background(), method, path, contentType, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %w", method, path, &StatusError{res.StatusCode, string(b)})
	}
	return b, nil
}

// Watch calls each with every change, until ctx ends, or each returns false.
func (c *Client) Watch(ctx context.Context, path string, each func(kind string, object json.RawMessage) bool) error {
	res, err := c.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		return fmt.Errorf("watch %s: %w", path, &StatusError{res.StatusCode, string(b)})
	}
	d := json.NewDecoder(res.Body)
	for {
		var ev struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := d.Decode(&ev); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if !each(ev.Type, ev.Object) {
			return nil
		}
	}
}

// Apply applies a manifest of several documents, as kubectl apply --server-side does. It returns once the API server enforces the
// roles in the manifest. The server learns of roles by watches, so it may refuse requests just after a role was stored.
func (c *Client) Apply(manifest []byte) error {
	docs := strings.Split(string(manifest), "\n---\n")
	for _, doc := range docs {
		var o struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Metadata   struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
		path := "/apis/" + o.APIVersion
		if !strings.Contains(o.APIVersion, "/") {
			path = "/api/" + o.APIVersion
		}
		if o.Metadata.Namespace != "" {
			path += "/namespaces/" + o.Metadata.Namespace
		}
		path += "/" + strings.ToLower(o.Kind) + "s/" + o.Metadata.Name
		if _, err := c.Do(http.MethodPatch, path+"?fieldManager=test&force=true&fieldValidation=Strict", Apply, []byte(doc)); err != nil {
			return err
		}
	}
	return c.awaitRights(docs)
}

// TokenOf asks for a token of a service account.
func (c *Client) TokenOf(namespace, account string) (string, error) {
	b, err := c.Do(http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", "",
		[]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":7200}}`))
	if err != nil {
		return "", err
	}
	var t struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return "", fmt.Errorf("token of %s/%s: %w", namespace, account, err)
	}
	return t.Status.Token, nil
}
