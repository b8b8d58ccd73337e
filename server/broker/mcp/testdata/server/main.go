// Command server is an MCP server over stdio, good or bad by its first argument.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const schema = `{"additionalProperties":false,"properties":{"query":{"type":"string"}},"required":["query"],"type":"object"}`

var out = bufio.NewWriter(os.Stdout)

func say(format string, args ...any) {
	fmt.Fprintf(out, format+"\n", args...)
	out.Flush()
}

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  json.RawMessage `json:"error"`
}

func main() {
	mode := os.Args[1]
	switch mode {
	case "sdk":
		real()
		return
	case "sleep":
		time.Sleep(time.Hour)
	case "deaf":
		time.Sleep(time.Hour)
	case "banner":
		fmt.Println("Server is starting …")
	case "gone":
		fmt.Fprintln(os.Stderr, "no\x1b[31m database\x07 found")
		os.Exit(3)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r request
		if json.Unmarshal(in.Bytes(), &r) != nil {
			os.Exit(9)
		}
		serve(mode, in, r)
	}
}

func serve(mode string, in *bufio.Scanner, r request) {
	switch r.Method {
	case "server/discover":
		os.Exit(8) // servers of before do not know it
	case "initialize":
		switch mode {
		case "hang":
			time.Sleep(time.Hour)
		case "flood":
			for line := strings.Repeat("x", 1<<16); ; {
				out.WriteString(line)
			}
		case "memory":
			var all [][]byte
			for {
				all = append(all, make([]byte, 16<<20))
				for i := range all[len(all)-1] {
					all[len(all)-1][i] = 1
				}
			}
		case "batch":
			say(`[{"jsonrpc":"2.0","id":%s,"result":{}}]`, r.ID)
		case "other":
			say(`{"jsonrpc":"2.0","id":77,"result":{}}`)
		}
		say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"notes","version":"1"}}}`, r.ID)
	case "tools/list":
		list(mode, r)
	case "tools/call":
		call(mode, in, r)
	}
}

func list(mode string, r request) {
	offered := schema
	if mode == "schema" {
		offered = strings.Replace(schema, `"string"`, `"number"`, 1)
	}
	more := ""
	if mode == "twice" {
		more = `,{"name":"search","description":"another","inputSchema":` + schema + `}`
	}
	if mode == "chatter" {
		for i := range 2000 {
			say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`, i)
		}
	}
	say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"search","description":"Looks.","inputSchema":%s}%s]}}`, r.ID, offered, more)
	if mode == "changes" {
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		time.Sleep(100 * time.Millisecond)
	}
}

func call(mode string, in *bufio.Scanner, r request) {
	text := "found"
	switch mode {
	case "dies":
		fmt.Fprintln(os.Stderr, "panic: the index is broken")
		os.Exit(4)
	case "stalls":
		time.Sleep(time.Hour)
	case "garbage":
		say("DEBUG search called")
	case "asks":
		text = asks(in)
	case "looks":
		text = looks()
	case "spawns":
		cmd := exec.Command(os.Args[0], "sleep", os.Args[2])
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			text = err.Error()
		}
	case "error":
		say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"the index is closed"}}`, r.ID)
		return
	}
	b, _ := json.Marshal(text)
	say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, r.ID, b)
}

// asks a client for everything that a server may, and says what came of it.
func asks(in *bufio.Scanner) string {
	var got []string
	for i, m := range []string{"sampling/createMessage", "roots/list", "elicitation/create", "ping"} {
		say(`{"jsonrpc":"2.0","id":"mine-%d","method":%q,"params":{}}`, i, m)
		if !in.Scan() {
			return "no answer"
		}
		var r request
		_ = json.Unmarshal(in.Bytes(), &r)
		got = append(got, fmt.Sprintf("%s refused=%t", m, len(r.Error) > 0))
	}
	return strings.Join(got, ", ")
}

// looks around for what a server must not have.
func looks() string {
	var found []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		found = append(found, "env "+name)
	}
	if all, _ := net.Interfaces(); len(all) > 1 {
		found = append(found, "network")
	}
	for _, p := range []string{"/root", "/home", "/run", "/sys", "/etc/shadow"} {
		if _, err := os.Stat(p); err == nil {
			found = append(found, "sees "+p)
		}
	}
	for _, p := range []string{"/x", "/usr/x", "/server/x", "/etc/x"} {
		if os.WriteFile(p, nil, 0o600) == nil {
			found = append(found, "writes "+p)
		}
	}
	if err := os.WriteFile("/tmp/x", []byte("x"), 0o600); err != nil {
		found = append(found, "no scratch: "+err.Error())
	}
	if b, err := os.ReadFile(os.Args[2] + "/note.txt"); err != nil || string(b) != "a note" {
		found = append(found, "no read_only folder")
	}
	if os.WriteFile(os.Args[2]+"/x", nil, 0o600) == nil {
		found = append(found, "writes "+os.Args[2])
	}
	return strings.Join(found, ", ")
}

// real is a server of the official SDK.
func real() {
	s := sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, nil)
	type args struct {
		Query string `json:"query"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "search", Description: "Looks."}, func(_ context.Context, _ *sdk.CallToolRequest, a args) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "real: " + a.Query}}}, nil, nil
	})
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}
