package client

import "time"

// SetGoneAfter replaces goneAfter, before the first watch.
func (c *Client) SetGoneAfter(d time.Duration) { c.goneAfter = d }
