// Go's net/http as a server and a client of HTTP/2, with and without TLS.
//
// `server [CERT KEY]` prints its port and serves until it is killed. `client URL [CA]` calls it through a proxy and
// prints how many checks passed; `client URL CA 1` does so with HTTP/1.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The time that anything may take on a busy machine.
const wait = 120 * time.Second

// Requests to `/wait` that have begun and that have ended.
var begun, ended = make(chan struct{}, 1000), make(chan struct{}, 1000)

func handlers() http.Handler {
	mux := http.NewServeMux()
	// The protocol, and whether resources may be pushed.
	mux.HandleFunc("/facts", func(w http.ResponseWriter, r *http.Request) {
		push := "none"
		if pusher, ok := w.(http.Pusher); ok {
			push = fmt.Sprint(pusher.Push("/other", nil))
		}
		fmt.Fprintf(w, "%s %s %s", r.Method, r.Proto, push)
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		buffer := make([]byte, 32768)
		for {
			count, err := r.Body.Read(buffer)
			if count > 0 {
				w.Write(buffer[:count])
				w.(http.Flusher).Flush()
			}
			if err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/hash", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Hash, X-Got")
		sum := sha256.New()
		io.Copy(sum, r.Body)
		fmt.Fprint(w, "read")
		// No length is announced, so that trailers can follow in HTTP/1, too.
		w.(http.Flusher).Flush()
		w.Header().Set("X-Hash", hex.EncodeToString(sum.Sum(nil)))
		w.Header().Set("X-Got", r.Trailer.Get("X-Sent"))
	})
	mux.HandleFunc("/bytes/", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/bytes/"))
		w.Write(bytes.Repeat([]byte("0123456789abcdef"), count/16+1)[:count])
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, r *http.Request) {
		for _, link := range []string{"</a.css>", "</b.css>"} {
			w.Header().Set("Link", link)
			w.WriteHeader(103)
		}
		fmt.Fprint(w, "hinted")
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	// Answers without reading what is sent.
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(413)
		fmt.Fprint(w, "too much")
	})
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	for path, events := range map[string]chan struct{}{"/begun/": begun, "/ended/": ended} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			count, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, path))
			for range count {
				select {
				case <-events:
				case <-time.After(wait):
					http.Error(w, "too few", 500)
					return
				}
			}
			fmt.Fprint(w, count)
		})
	}
	return mux
}

func serve(files []string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	server := &http.Server{Handler: handlers(), Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	fmt.Printf("port: %d\n", listener.Addr().(*net.TCPAddr).Port)
	if len(files) > 0 {
		server.Protocols.SetHTTP2(true)
		server.ServeTLS(listener, files[0], files[1])
	} else {
		server.Protocols.SetUnencryptedHTTP2(true)
		server.Serve(listener)
	}
}

var checks atomic.Int32

func fail(err error) {
	if err != nil {
		panic(err)
	}
}

func clip(value any) string {
	return fmt.Sprintf("%.300s", fmt.Sprint(value))
}

func check[T comparable](found, expected T) {
	if found != expected {
		panic(fmt.Sprintf("%s instead of %s", clip(found), clip(expected)))
	}
	checks.Add(1)
}

type client struct {
	http.Client
	url string
	// Connections that were opened.
	dials atomic.Int32
	old   bool
}

func newClient(url, ca string, old bool) *client {
	result := &client{url: url, old: old}
	dialer := net.Dialer{}
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			result.dials.Add(1)
			return dialer.DialContext(ctx, network, address)
		},
		ExpectContinueTimeout: wait,
		DisableCompression:    true,
	}
	switch {
	case old:
		transport.Protocols.SetHTTP1(true)
	case ca == "":
		transport.Protocols.SetUnencryptedHTTP2(true)
	default:
		transport.Protocols.SetHTTP2(true)
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		fail(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	result.Client = http.Client{Transport: transport, Timeout: wait}
	return result
}

func (c *client) get(path string) (string, *http.Response) {
	response, err := c.Get(c.url + path)
	fail(err)
	body, err := io.ReadAll(response.Body)
	fail(err)
	response.Body.Close()
	if response.StatusCode != 200 {
		panic(fmt.Sprintf("%s: %d %s", path, response.StatusCode, clip(string(body))))
	}
	return string(body), response
}

// counted is a body that sends a trailer after its last byte.
type counted struct {
	io.Reader
	request *http.Request
}

func (c *counted) Read(into []byte) (int, error) {
	count, err := c.Reader.Read(into)
	if err == io.EOF {
		c.request.Trailer.Set("X-Sent", "behind")
	}
	return count, err
}

func (c *client) run() {
	proto := "HTTP/2.0"
	if c.old {
		proto = "HTTP/1.1"
	}
	body, response := c.get("/facts")
	check(response.Proto, proto)
	check(strings.HasPrefix(body, "GET HTTP/"), true)
	check(strings.HasSuffix(body, "feature not supported") || strings.HasSuffix(body, "none"), true)

	// A long upload with a trailer, answered with a digest in a trailer.
	data := bytes.Repeat([]byte("some text of odd length"), 500_000)
	digest := sha256.Sum256(data)
	request, _ := http.NewRequest("POST", c.url+"/hash", nil)
	request.Trailer = http.Header{"X-Sent": nil}
	request.Body = io.NopCloser(&counted{bytes.NewReader(data), request})
	request.ContentLength = -1
	response, err := c.Do(request)
	fail(err)
	text, err := io.ReadAll(response.Body)
	fail(err)
	check(string(text), "read")
	check(response.Trailer.Get("X-Hash"), hex.EncodeToString(digest[:]))
	check(response.Trailer.Get("X-Got"), "behind")

	request, _ = http.NewRequest("PUT", c.url+"/hash", bytes.NewReader(data))
	request.Header.Set("Expect", "100-continue")
	continues := 0
	trace := &httptrace.ClientTrace{Got100Continue: func() { continues++ }}
	response, err = c.Do(request.WithContext(httptrace.WithClientTrace(context.Background(), trace)))
	fail(err)
	io.ReadAll(response.Body)
	check(continues, 1)
	check(response.Trailer.Get("X-Hash"), hex.EncodeToString(digest[:]))

	var hints []string
	trace = &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, header["Link"]))
		return nil
	}}
	request, _ = http.NewRequest("GET", c.url+"/hints", nil)
	response, err = c.Do(request.WithContext(httptrace.WithClientTrace(context.Background(), trace)))
	fail(err)
	text, _ = io.ReadAll(response.Body)
	check(string(text), "hinted")
	check(strings.Join(hints, " "), "103 [</a.css>] 103 [</b.css>]")

	body, response = c.get("/bytes/10000001")
	check(len(body), 10_000_001)
	response, err = c.Head(c.url + "/bytes/1000")
	fail(err)
	check(response.ContentLength, 1000)

	response, err = c.Get(c.url + "/abort")
	if err == nil {
		text, err = io.ReadAll(response.Body)
		check(string(text), "a part")
	}
	check(err != nil, true)

	// An answer before the end of the request; the connection lives on. The proxy reads 4 MiB of what a client of
	// HTTP/1 still sends before it closes, and net/http may prefer a failed write to an answer that it has not read.
	early := data
	if c.old {
		early = data[:3_000_000]
	}
	response, err = c.Post(c.url+"/early", "", bytes.NewReader(early))
	fail(err)
	text, err = io.ReadAll(response.Body)
	fail(err)
	check(fmt.Sprint(response.StatusCode, string(text)), "413too much")

	if !c.old {
		// Each message is sent after the answer to the one before.
		reader, writer := io.Pipe()
		request, _ = http.NewRequest("POST", c.url+"/echo", reader)
		response, err = c.Do(request)
		fail(err)
		for number := range 50 {
			word := fmt.Sprintf("message %d;", number)
			writer.Write([]byte(word))
			answer := make([]byte, len(word))
			_, err = io.ReadFull(response.Body, answer)
			fail(err)
			if string(answer) != word {
				check(string(answer), word)
			}
		}
		writer.Close()
		text, err = io.ReadAll(response.Body)
		fail(err)
		check(len(text), 0)
	}

	// Requests that are given up are given up at the server.
	var waiting sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for range 10 {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			request, _ := http.NewRequestWithContext(ctx, "GET", c.url+"/wait", nil)
			_, err := c.Do(request)
			check(err != nil, true)
		}()
	}
	body, _ = c.get("/begun/10")
	check(body, "10")
	cancel()
	waiting.Wait()
	body, _ = c.get("/ended/10")
	check(body, "10")

	for number := range 100 {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			body, _ := c.get(fmt.Sprintf("/bytes/%d", 100_000+number))
			check(len(body), 100_000+number)
		}()
	}
	waiting.Wait()
	if !c.old {
		check(c.dials.Load(), 1)
	}
}

func main() {
	if os.Args[1] == "server" {
		serve(os.Args[2:])
		return
	}
	ca := ""
	if len(os.Args) > 3 {
		ca = os.Args[3]
	}
	newClient(os.Args[2], ca, len(os.Args) > 4).run()
	fmt.Printf("operations: %d\n", checks.Load())
}
