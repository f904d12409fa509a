import typer
app=typer.Typer()
@app.command()
def command() -> None:
    pass
