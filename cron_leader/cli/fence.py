import typer

app = typer.Typer()


@app.command()
def show() -> None: ...
@app.command()
def rebase() -> None: ...
